// A bound UDP socket, IPv4 or IPv6, that moves many datagrams per system call: segmentation offload (UDP_SEGMENT) and
// sendmmsg outwards, UDP_GRO and recvmmsg inwards, each with a fallback where the kernel lacks it. Never fragments.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/descriptor.h"
#include "ltp/endpoint.h"

namespace gradwire::io {

// "10.0.0.1", "::1", "fe80::1%eth0"; throws std::invalid_argument.
ltp::Address parse_address(const std::string& host, std::uint16_t port);
std::string format_address(const ltp::Address& address);

struct SocketStats {
  std::uint64_t send_calls = 0, receive_calls = 0, datagrams_sent = 0, datagrams_received = 0;
  std::uint64_t send_blocked = 0, send_errors = 0;
};

class UdpSocket {
 public:
  // Throws std::system_error when the address cannot be bound. Port 0 lets the kernel choose.
  UdpSocket(const std::string& host, std::uint16_t port, std::size_t buffer_bytes);

  int fd() const { return fd_.get(); }
  std::uint16_t port() const { return port_; }
  std::size_t segments() const { return gso_ ? kSegments : 1; }

  // Puts a run into the next sendmmsg; `fill` writes into the room it is given and says what it wrote. False: full.
  ltp::MutableBytes room() { return ltp::MutableBytes(out_).subspan(queued_ * kRun, kRun); }
  bool full() const { return queued_ == kBatch; }
  void queue(const ltp::Transmit& transmit);
  // False when the kernel's buffer is full; what is queued stays queued.
  bool flush();
  bool pending() const { return flushed_ < queued_; }

  // Reads what is there (at most a few batches) and hands over each datagram. True when there may be more.
  bool receive(const std::function<void(const ltp::Address&, ltp::MutableBytes)>& take);

  const SocketStats& stats() const { return stats_; }

 private:
  static constexpr std::size_t kBatch = 16;       // runs per sendmmsg
  static constexpr std::size_t kRun = 65507;      // the largest UDP payload
  static constexpr std::size_t kSegments = 44;    // the kernel takes 64; 44 of Ethernet size fill a run
  static constexpr std::size_t kReceives = 16;    // messages per recvmmsg

  // False when none could go alone either.
  bool send_one_by_one(const ltp::Transmit& run, const std::uint8_t* bytes);

  Descriptor fd_;
  int family_ = 0;
  std::uint16_t port_ = 0;
  bool gso_ = false, gro_ = false;
  std::vector<std::uint8_t> out_, in_;
  ltp::Transmit runs_[kBatch];
  std::size_t queued_ = 0, flushed_ = 0;
  SocketStats stats_;
};

}  // namespace gradwire::io
