#include "stream/tcp_channel.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace gradwire::stream {
namespace {

constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

socklen_t to_kernel(const ltp::Address& address, sockaddr_storage& out) {
  std::memset(&out, 0, sizeof out);
  if (std::memcmp(address.ip.data(), kMapped, sizeof kMapped) == 0) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(out);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(address.port);
    std::memcpy(&v4.sin_addr, address.ip.data() + 12, 4);
    return sizeof v4;
  }
  auto& v6 = reinterpret_cast<sockaddr_in6&>(out);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(address.port);
  v6.sin6_scope_id = address.scope;
  std::memcpy(&v6.sin6_addr, address.ip.data(), 16);
  return sizeof v6;
}

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

io::Descriptor open_socket(int family) {
  io::Descriptor socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) fail("socket");
  return socket;
}

std::ptrdiff_t outcome(ssize_t count) {
  if (count >= 0) return count;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

}  // namespace

TcpChannel::TcpChannel(io::Descriptor socket) : socket_(std::move(socket)) {
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

void TcpChannel::describe(ltp::LinkStats& stats) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) < 0) return;
  stats.srtt = ltp::Time{info.tcpi_rtt} * ltp::kMicrosecond;
  stats.rtprop = ltp::Time{info.tcpi_min_rtt ? info.tcpi_min_rtt : info.tcpi_rtt} * ltp::kMicrosecond;
  stats.rtt_variation = ltp::Time{info.tcpi_rttvar} * ltp::kMicrosecond;
  stats.delivery_rate = static_cast<double>(info.tcpi_delivery_rate);
  if (!info.tcpi_delivery_rate_app_limited && info.tcpi_delivery_rate) bottleneck_ = stats.delivery_rate;
  stats.bottleneck = bottleneck_;
  stats.pacing_rate = info.tcpi_pacing_rate == ~0ull ? 0 : static_cast<double>(info.tcpi_pacing_rate);
  if (info.tcpi_bytes_sent > sent_) {
    double share = static_cast<double>(info.tcpi_bytes_retrans - resent_) / static_cast<double>(info.tcpi_bytes_sent - sent_);
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

Listener listen_tcp(const ltp::Address& address) {
  sockaddr_storage name;
  socklen_t size = to_kernel(address, name);
  Listener listener{open_socket(name.ss_family), 0};
  int on = 1;
  ::setsockopt(listener.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(listener.socket.get(), reinterpret_cast<sockaddr*>(&name), size) < 0) fail("bind");
  if (::listen(listener.socket.get(), 1024) < 0) fail("listen");
  size = sizeof name;
  if (::getsockname(listener.socket.get(), reinterpret_cast<sockaddr*>(&name), &size) < 0) fail("getsockname");
  bool v4 = name.ss_family == AF_INET;
  listener.port = ntohs(v4 ? reinterpret_cast<sockaddr_in&>(name).sin_port : reinterpret_cast<sockaddr_in6&>(name).sin6_port);
  return listener;
}

io::Descriptor accept_from(const Listener& listener, ltp::Address& from) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  io::Descriptor socket(::accept4(listener.socket.get(), reinterpret_cast<sockaddr*>(&name), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  from = {};
  if (name.ss_family == AF_INET) {
    std::memcpy(from.ip.data(), kMapped, sizeof kMapped);
    std::memcpy(from.ip.data() + 12, &reinterpret_cast<sockaddr_in&>(name).sin_addr, 4);
  } else if (name.ss_family == AF_INET6) {
    std::memcpy(from.ip.data(), &reinterpret_cast<sockaddr_in6&>(name).sin6_addr, 16);
  }
  return socket;
}

io::Descriptor connect_tcp(const ltp::Address& from, const ltp::Address& to) {
  sockaddr_storage name;
  socklen_t size = to_kernel(to, name);
  io::Descriptor socket = open_socket(name.ss_family);
  ltp::Address own = from;
  own.port = 0;
  sockaddr_storage own_name;
  socklen_t own_size = to_kernel(own, own_name);
  int on = 1;
  ::setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  if (own_name.ss_family == name.ss_family && ::bind(socket.get(), reinterpret_cast<sockaddr*>(&own_name), own_size) < 0) fail("bind");
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&name), size) < 0 && errno != EINPROGRESS) fail("connect");
  return socket;
}

}  // namespace gradwire::stream
