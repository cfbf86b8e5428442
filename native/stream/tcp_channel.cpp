#include "stream/tcp_channel.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

namespace gradwire::stream {
namespace {

socklen_t to_kernel(const Address& address, sockaddr_storage& out) {
  return gradwire::to_kernel(address, is_v4(address) ? AF_INET : AF_INET6, out);
}

Descriptor open_socket(int family) {
  return checked(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket");
}

std::ptrdiff_t outcome(ssize_t count) {
  if (count >= 0) return count;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

}  // namespace

TcpChannel::TcpChannel(Descriptor socket) : socket_(std::move(socket)) {
  int on = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::ptrdiff_t TcpChannel::write(std::span<const iovec> pieces) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  return outcome(::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

std::ptrdiff_t TcpChannel::read(std::span<const iovec> pieces) {
  ssize_t count = ::readv(socket_.get(), pieces.data(), static_cast<int>(pieces.size()));
  return count == 0 ? -1 : outcome(count);
}

void TcpChannel::describe(LinkStats& stats) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) < 0) return;
  stats.srtt = Time{info.tcpi_rtt} * kMicrosecond;
  stats.rtprop = Time{info.tcpi_min_rtt ? info.tcpi_min_rtt : info.tcpi_rtt} * kMicrosecond;
  stats.rtt_variation = Time{info.tcpi_rttvar} * kMicrosecond;
  stats.delivery_rate = static_cast<double>(info.tcpi_delivery_rate);
  if (!info.tcpi_delivery_rate_app_limited && info.tcpi_delivery_rate) bottleneck_ = stats.delivery_rate;
  stats.bottleneck = bottleneck_;
  stats.pacing_rate = info.tcpi_pacing_rate == ~0ull ? 0 : static_cast<double>(info.tcpi_pacing_rate);
  if (info.tcpi_bytes_sent > sent_) {
    double share =
        static_cast<double>(info.tcpi_bytes_retrans - resent_) / static_cast<double>(info.tcpi_bytes_sent - sent_);
    loss_ += (share - loss_) / 8;
    sent_ = info.tcpi_bytes_sent;
    resent_ = info.tcpi_bytes_retrans;
  }
  stats.loss = loss_;
  stats.in_flight = std::uint64_t{info.tcpi_unacked} * info.tcpi_snd_mss;
  stats.window = std::uint64_t{info.tcpi_snd_cwnd} * info.tcpi_snd_mss;
  stats.datagram = static_cast<std::uint16_t>(info.tcpi_snd_mss);
  stats.counters.packets_sent = info.tcpi_segs_out;
  stats.counters.packets_received = info.tcpi_segs_in;
  stats.counters.bytes_sent = info.tcpi_bytes_sent;
  stats.counters.bytes_acked = info.tcpi_bytes_acked;
  stats.counters.bytes_received = info.tcpi_bytes_received;
  stats.counters.packets_lost = info.tcpi_total_retrans;
  stats.counters.retransmitted_bytes = info.tcpi_bytes_retrans;
}

Listener listen_tcp(const Address& address) {
  sockaddr_storage name;
  socklen_t size = to_kernel(address, name);
  Listener listener{open_socket(name.ss_family), 0};
  int on = 1;
  ::setsockopt(listener.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(listener.socket.get(), reinterpret_cast<sockaddr*>(&name), size) < 0) throw_errno("bind");
  if (::listen(listener.socket.get(), 1024) < 0) throw_errno("listen");
  size = sizeof name;
  if (::getsockname(listener.socket.get(), reinterpret_cast<sockaddr*>(&name), &size) < 0) throw_errno("getsockname");
  listener.port = from_kernel(name).port;
  return listener;
}

Descriptor accept_from(const Listener& listener, Address& from) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  Descriptor socket(
      ::accept4(listener.socket.get(), reinterpret_cast<sockaddr*>(&name), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  from = from_kernel(name);
  from.port = 0;
  from.scope = 0;
  return socket;
}

Descriptor connect_tcp(const Address& from, const Address& to) {
  sockaddr_storage name;
  socklen_t size = to_kernel(to, name);
  Descriptor socket = open_socket(name.ss_family);
  Address own = from;
  own.port = 0;
  sockaddr_storage own_name;
  socklen_t own_size = to_kernel(own, own_name);
  int on = 1;
  ::setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  if (own_name.ss_family == name.ss_family &&
      ::bind(socket.get(), reinterpret_cast<sockaddr*>(&own_name), own_size) < 0)
    throw_errno("bind");
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&name), size) < 0 && errno != EINPROGRESS)
    throw_errno("connect");
  return socket;
}

}  // namespace gradwire::stream
