// PacketWorld: LTP endpoints on the lab's link model in virtual time: every packet of every transfer, reproducible to
// the bit.
//
// In:  hosts, links and paths as in the lab, transfers between hosts.  Out: what has arrived, and when.
// The protocol is the real one (ltp/endpoint.h) and the network is that of the lab (emulator/engine.h), without
// threads, sockets and clock. Payloads have no content: all transfers share one buffer.
#pragma once
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "emulator/engine.h"
#include "ltp/endpoint.h"

namespace gradwire::packets {

// A transfer that has arrived completely at `host`, or (`sent`) whose sender `host` knows that it has.
struct Delivery {
  Time at = 0;
  std::uint32_t host = 0;
  std::uint64_t token = 0;
  bool sent = false;
};

class PacketWorld {
 public:
  PacketWorld(std::uint32_t hosts, std::uint64_t seed);
  PacketWorld(const PacketWorld&) = delete;
  PacketWorld& operator=(const PacketWorld&) = delete;

  void add_link(const emulator::LinkValues& values, std::uint64_t seed, std::uint32_t overhead) {
    engine_.add_link(values, seed, overhead);
  }
  void set_path(std::uint32_t source, std::uint32_t target, std::vector<std::uint32_t> links) {
    engine_.set_path(source, target, std::move(links));
  }
  // Starts the handshake of a pair; transfers may be submitted before it ends.
  void connect(std::uint32_t one, std::uint32_t other);

  // `token` identifies a transfer at both ends. `deadline`: the receiver's own, for threshold and deadline; 0: learned.
  void expect(std::uint32_t host, std::uint32_t peer, std::uint64_t token, std::uint64_t size, Time deadline = 0);
  void send(std::uint32_t host, std::uint32_t peer, std::uint64_t token, std::uint64_t size,
            std::uint32_t tolerance = kWhole, std::shared_ptr<const Importance> importance = nullptr);
  // What did not arrive of a tolerant transfer that was delivered to `host`; asking takes it.
  std::vector<ByteRange> take_missing(std::uint32_t host, std::uint64_t token);

  // Runs until a delivery or until `limit` has passed.
  std::vector<Delivery> run(Time limit);
  Time now() const { return now_; }
  LinkStats stats(std::uint32_t host, std::uint32_t peer) const;

 private:
  struct Host {
    std::unique_ptr<ltp::Endpoint> endpoint;
    Time due = kNever;
  };

  // Sends what a host has to send, collects its events, and stores its next timeout.
  void serve(std::uint32_t host, std::vector<Delivery>& deliveries);
  std::uint8_t* content(std::uint64_t size);
  void offer(std::uint32_t host, const Address& to, Bytes datagram);
  void deliver(const emulator::Packet& packet, std::vector<Delivery>& deliveries);

  emulator::Engine engine_;
  std::vector<Host> hosts_;
  std::vector<std::vector<std::uint8_t>> contents_;  // the last is the largest; earlier ones may still be in use
  std::vector<std::uint8_t> scratch_;
  std::vector<std::uint32_t> touched_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<ByteRange>> missing_;  // host, token
  Time now_ = kSecond;
};

}  // namespace gradwire::packets
