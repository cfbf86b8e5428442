// TcpChannel: a connected TCP socket as a channel, and functions that create such sockets. TCP_NODELAY is set; nothing
// blocks.
#pragma once
#include <string>

#include "core/address.h"
#include "core/descriptor.h"
#include "stream/channel.h"

namespace gradwire::stream {

class TcpChannel : public Channel {
 public:
  explicit TcpChannel(Descriptor socket);
  std::ptrdiff_t write(std::span<const iovec> pieces) override;
  std::ptrdiff_t read(std::span<const iovec> pieces) override;
  int fd() const override { return socket_.get(); }
  bool polled_for_writable() const override { return true; }
  // From TCP_INFO. The bottleneck is the last delivery rate that was not application-limited; loss is a smoothed share
  // of retransmitted bytes.
  void describe(LinkStats& stats) override;

 private:
  Descriptor socket_;
  double bottleneck_ = 0, loss_ = 0;
  std::uint64_t sent_ = 0, resent_ = 0;
};

struct Listener {
  Descriptor socket;
  std::uint16_t port = 0;
};
// Both throw std::system_error. Port 0 lets the kernel choose.
Listener listen_tcp(const Address& address);
// The next connection of a listener, and its address without the port (empty for a local socket). An empty descriptor:
// none.
Descriptor accept_from(const Listener& listener, Address& from);
// A socket that is connecting; writable when that has succeeded or failed. Bound to the address of `from`.
Descriptor connect_tcp(const Address& from, const Address& to);

}  // namespace gradwire::stream
