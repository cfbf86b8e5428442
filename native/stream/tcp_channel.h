// A connected TCP socket as a channel, and the making of such sockets. Nagle's delay is off; nothing blocks.
#pragma once
#include <string>

#include "io/descriptor.h"
#include "ltp/address.h"
#include "stream/channel.h"

namespace gradwire::stream {

class TcpChannel : public Channel {
 public:
  explicit TcpChannel(io::Descriptor socket);
  std::ptrdiff_t write(std::span<const iovec> pieces) override;
  std::ptrdiff_t read(std::span<const iovec> pieces) override;
  int fd() const override { return socket_.get(); }
  bool polled_for_room() const override { return true; }
  // TCP_INFO, with what it does not hold filtered here: the bottleneck is the last delivery rate that the application
  // did not limit, loss a smoothed share of bytes sent twice.
  void describe(ltp::LinkStats& stats) override;

 private:
  io::Descriptor socket_;
  double bottleneck_ = 0, loss_ = 0;
  std::uint64_t sent_ = 0, resent_ = 0;
};

struct Listener {
  io::Descriptor socket;
  std::uint16_t port = 0;
};
// Both throw std::system_error. Port 0 lets the kernel choose.
Listener listen_tcp(const ltp::Address& address);
// The next caller of a listener, and where it calls from (nowhere for a local socket). An empty descriptor when there is none.
io::Descriptor accept_from(const Listener& listener, ltp::Address& from);
// A socket whose connection is under way; writable when it is decided. Bound to `from`'s address.
io::Descriptor connect_tcp(const ltp::Address& from, const ltp::Address& to);

}  // namespace gradwire::stream
