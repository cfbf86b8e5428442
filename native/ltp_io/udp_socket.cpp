#include "ltp_io/udp_socket.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace gradwire::ltp_io {

UdpSocket::UdpSocket(const std::string& host, std::uint16_t port, std::size_t buffer_bytes)
    : out_(kBatch * kRun), in_(kReceives * (kRun + 1)) {
  Address address = parse_address(host, port);
  family_ = is_v4(address) ? AF_INET : AF_INET6;
  fd_.reset(::socket(family_, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd_.get() < 0) throw_errno("socket");
  sockaddr_storage kernel;
  socklen_t length = to_kernel(address, family_, kernel);
  if (::bind(fd_.get(), reinterpret_cast<sockaddr*>(&kernel), length) < 0) throw_errno("bind");
  length = sizeof kernel;
  if (::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&kernel), &length) < 0) throw_errno("getsockname");
  port_ = from_kernel(kernel).port;
  // LTP does its own path MTU discovery: set DF; the kernel neither fragments nor caches a path MTU (PROBE).
  int probe = IP_PMTUDISC_PROBE, probe6 = IPV6_PMTUDISC_PROBE, one = 1;
  if (family_ == AF_INET)
    ::setsockopt(fd_.get(), IPPROTO_IP, IP_MTU_DISCOVER, &probe, sizeof probe);
  else
    ::setsockopt(fd_.get(), IPPROTO_IPV6, IPV6_MTU_DISCOVER, &probe6, sizeof probe6);
  int bytes = static_cast<int>(buffer_bytes);
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  // The privileged option exceeds the system's limit; without privileges the plain one is limited by it.
  if (::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) < 0)
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  int none = 0;
  gso_ = ::setsockopt(fd_.get(), IPPROTO_UDP, UDP_SEGMENT, &none, sizeof none) == 0;
  gro_ = ::setsockopt(fd_.get(), IPPROTO_UDP, UDP_GRO, &one, sizeof one) == 0;
}

void UdpSocket::queue(const ltp::Transmit& transmit) { runs_[queued_++] = transmit; }

bool UdpSocket::flush() {
  mmsghdr messages[kBatch];
  iovec pieces[kBatch];
  sockaddr_storage names[kBatch];
  alignas(cmsghdr) char controls[kBatch][CMSG_SPACE(sizeof(std::uint16_t))];
  while (flushed_ < queued_) {
    unsigned count = 0;
    for (std::size_t i = flushed_; i < queued_; ++i, ++count) {
      const ltp::Transmit& run = runs_[i];
      pieces[count] = {out_.data() + i * kRun, run.size};
      msghdr& header = messages[count].msg_hdr;
      header = {};
      header.msg_name = &names[count];
      header.msg_namelen = to_kernel(run.to, family_, names[count]);
      header.msg_iov = &pieces[count];
      header.msg_iovlen = 1;
      if (run.size == run.segment) continue;
      header.msg_control = controls[count];
      header.msg_controllen = sizeof controls[count];
      cmsghdr* control = CMSG_FIRSTHDR(&header);
      control->cmsg_level = IPPROTO_UDP;
      control->cmsg_type = UDP_SEGMENT;
      control->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
      auto segment = static_cast<std::uint16_t>(run.segment);
      std::memcpy(CMSG_DATA(control), &segment, sizeof segment);
    }
    ++stats_.send_calls;
    int sent = ::sendmmsg(fd_.get(), messages, count, 0);
    if (sent > 0) {
      for (int i = 0; i < sent; ++i, ++flushed_)
        stats_.datagrams_sent += (runs_[flushed_].size + runs_[flushed_].segment - 1) / runs_[flushed_].segment;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == ENOBUFS) {
      ++stats_.send_blocked;
      return false;
    }
    // The first run cannot be sent: too large for the interface (a probe), offload refused by the device, or no route.
    // The protocol sees a loss. A run with offload is sent again datagram by datagram: only if that succeeds was
    // offload the cause (kernels return EINVAL also for segments that are too large for the interface), and it is
    // switched off.
    ++stats_.send_errors;
    const ltp::Transmit& run = runs_[flushed_];
    bool offload = (errno == EIO || errno == EINVAL) && run.size != run.segment;
    if (offload && send_one_by_one(run, out_.data() + flushed_ * kRun)) gso_ = false;
    ++flushed_;
  }
  queued_ = flushed_ = 0;
  return true;
}

bool UdpSocket::send_one_by_one(const ltp::Transmit& run, const std::uint8_t* bytes) {
  sockaddr_storage name;
  socklen_t length = to_kernel(run.to, family_, name);
  std::uint64_t before = stats_.datagrams_sent;
  for (std::size_t at = 0; at < run.size; at += run.segment) {
    std::size_t size = std::min(run.segment, run.size - at);
    if (::sendto(fd_.get(), bytes + at, size, 0, reinterpret_cast<sockaddr*>(&name), length) >= 0)
      ++stats_.datagrams_sent;
  }
  return stats_.datagrams_sent > before;
}

bool UdpSocket::receive(const std::function<void(const Address&, MutableBytes)>& take) {
  mmsghdr messages[kReceives];
  iovec pieces[kReceives];
  sockaddr_storage names[kReceives];
  alignas(cmsghdr) char controls[kReceives][CMSG_SPACE(sizeof(int))];
  for (std::size_t i = 0; i < kReceives; ++i) {
    pieces[i] = {in_.data() + i * (kRun + 1), kRun + 1};
    msghdr& header = messages[i].msg_hdr;
    header = {};
    header.msg_name = &names[i];
    header.msg_namelen = sizeof names[i];
    header.msg_iov = &pieces[i];
    header.msg_iovlen = 1;
    header.msg_control = controls[i];
    header.msg_controllen = sizeof controls[i];
  }
  ++stats_.receive_calls;
  int count = ::recvmmsg(fd_.get(), messages, kReceives, MSG_DONTWAIT, nullptr);
  // Errors here are earlier ICMP messages or an empty socket; in both cases there is no datagram.
  for (int i = 0; i < count; ++i) {
    std::size_t size = messages[i].msg_len, segment = size;
    if (messages[i].msg_hdr.msg_flags & MSG_TRUNC) continue;
    for (cmsghdr* c = CMSG_FIRSTHDR(&messages[i].msg_hdr); c; c = CMSG_NXTHDR(&messages[i].msg_hdr, c))
      if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
        int value;
        std::memcpy(&value, CMSG_DATA(c), sizeof value);
        if (value > 0) segment = static_cast<std::size_t>(value);
      }
    Address from = from_kernel(names[i]);
    auto* bytes = static_cast<std::uint8_t*>(pieces[i].iov_base);
    if (size == 0) take(from, {bytes, 0});
    for (std::size_t at = 0; at < size; at += segment, ++stats_.datagrams_received)
      take(from, {bytes + at, std::min(segment, size - at)});
  }
  return count == static_cast<int>(kReceives);
}

}  // namespace gradwire::ltp_io
