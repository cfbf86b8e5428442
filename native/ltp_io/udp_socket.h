// UdpSocket: a bound UDP socket, IPv4 or IPv6, with many datagrams per system call: segmentation offload (UDP_SEGMENT)
// and sendmmsg to send, UDP_GRO and recvmmsg to receive, each with a fallback where the kernel lacks it. Never
// fragments.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/address.h"
#include "core/descriptor.h"
#include "ltp/endpoint.h"

namespace gradwire::ltp_io {

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

  // To send: write a run into room() unless full(), then queue() it for the next flush().
  MutableBytes room() { return MutableBytes(out_).subspan(queued_ * kRun, kRun); }
  bool full() const { return queued_ == kBatch; }
  void queue(const ltp::Transmit& transmit);
  // False when the kernel's buffer is full; the rest stays queued.
  bool flush();
  bool pending() const { return flushed_ < queued_; }

  // Reads one batch and calls `take` for each datagram. True when there may be more.
  bool receive(const std::function<void(const Address&, MutableBytes)>& take);

  const SocketStats& stats() const { return stats_; }

 private:
  static constexpr std::size_t kBatch = 16;     // runs per sendmmsg
  static constexpr std::size_t kRun = 65507;    // the largest UDP payload
  static constexpr std::size_t kSegments = 44;  // the kernel takes 64; 44 of Ethernet size fill a run
  static constexpr std::size_t kReceives = 16;  // messages per recvmmsg

  // False when no datagram could be sent alone either.
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

}  // namespace gradwire::ltp_io
