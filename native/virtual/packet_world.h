// LTP endpoints on the lab's own link model in virtual time: every packet of every transfer, repeatable to the bit.
//
// In:  hosts, links and paths as the lab gets them, transfers between hosts.  Out: what has arrived, and when.
// The protocol is the one on the wire (ltp/endpoint.h) and the network the one of the lab (emulator/engine.h); only
// threads, sockets and the clock are missing. Payloads have no content: all transfers share one buffer.
#pragma once
#include <memory>
#include <vector>

#include "emulator/engine.h"
#include "ltp/endpoint.h"

namespace gradwire::packets {

// A transfer that has arrived whole at `host`, or (`sent`) that its sender knows to be there.
struct Landed {
  ltp::Time at = 0;
  std::uint32_t host = 0;
  std::uint64_t token = 0;
  bool sent = false;
};

class PacketWorld {
 public:
  PacketWorld(std::uint32_t hosts, std::uint64_t seed);
  PacketWorld(const PacketWorld&) = delete;
  PacketWorld& operator=(const PacketWorld&) = delete;

  void add_link(const emulator::LinkValues& values, std::uint64_t seed, std::uint32_t overhead) { engine_.add_link(values, seed, overhead); }
  void set_path(std::uint32_t source, std::uint32_t target, std::vector<std::uint32_t> links) { engine_.set_path(source, target, std::move(links)); }
  // Starts the handshake of a pair; transfers may be submitted before it ends.
  void connect(std::uint32_t one, std::uint32_t other);

  // `token` names a transfer at both ends.
  void expect(std::uint32_t host, std::uint32_t peer, std::uint64_t token, std::uint64_t size);
  void send(std::uint32_t host, std::uint32_t peer, std::uint64_t token, std::uint64_t size);

  // Goes on until something has landed or `limit` has passed.
  std::vector<Landed> run(ltp::Time limit);
  ltp::Time now() const { return now_; }
  ltp::LinkStats stats(std::uint32_t host, std::uint32_t peer) const;

 private:
  struct Host {
    std::unique_ptr<ltp::Endpoint> endpoint;
    ltp::Time due = ltp::kNever;
  };

  // Lets a host say what it has to say, and notes when it wants to be woken.
  void serve(std::uint32_t host, std::vector<Landed>& landed);
  std::uint8_t* content(std::uint64_t size);
  void offer(std::uint32_t host, const ltp::Address& to, ltp::Bytes datagram);
  void deliver(const emulator::Packet& packet, std::vector<Landed>& landed);

  emulator::Engine engine_;
  std::vector<Host> hosts_;
  std::vector<std::vector<std::uint8_t>> contents_;  // the last is the largest; earlier ones may still be in use
  std::vector<std::uint8_t> scratch_;
  std::vector<std::uint32_t> touched_;
  ltp::Time now_ = ltp::kSecond;
};

}  // namespace gradwire::packets
