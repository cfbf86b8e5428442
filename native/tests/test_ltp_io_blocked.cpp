// What the loop does while its socket is full or refuses to send. The system calls that report this are defined here,
// before those of the C library, because loopback never blocks.
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "ltp_io/loop.h"
#include "tests/check.h"

using namespace gradwire;

namespace {

std::atomic<int> refusal = 0;  // what sendmmsg answers; 0: as the system does
std::atomic<std::uint64_t> refused = 0;
std::atomic<bool> too_large = false;  // for sendto

}  // namespace

extern "C" int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  if (int reason = refusal) return ++refused, errno = reason, -1;
  return static_cast<int>(::syscall(SYS_sendmmsg, fd, messages, count, flags));
}

extern "C" ssize_t sendto(int fd, const void* bytes, std::size_t size, int flags, const sockaddr* to,
                          socklen_t length) {
  if (too_large) return errno = EMSGSIZE, -1;
  return ::syscall(SYS_sendto, fd, bytes, size, flags, to, length);
}

// A full socket is not writable.
extern "C" int ppoll(pollfd* watched, nfds_t count, const timespec* limit, const sigset_t*) {
  if (refusal == EAGAIN)
    for (nfds_t i = 0; i < count; ++i) watched[i].events &= ~POLLOUT;
  timespec copy = limit ? *limit : timespec{};
  return static_cast<int>(::syscall(SYS_ppoll, watched, count, limit ? &copy : nullptr, nullptr, 0));
}

namespace {

Time in(Time time) { return monotonic_now() + time; }

ltp_io::LoopConfig config(std::uint32_t rank) {
  ltp_io::LoopConfig config;
  config.self = {rank, 100 + rank};
  config.secret.assign(32, 7);
  return config;
}

void join(ltp_io::Loop& a, std::uint32_t rank_a, ltp_io::Loop& b, std::uint32_t rank_b) {
  a.connect(rank_b, parse_address("127.0.0.1", b.port()));
  b.connect(rank_a, parse_address("127.0.0.1", a.port()));
  Failure failure;
  CHECK(a.wait_connected(rank_b, in(60 * kSecond), failure) && b.wait_connected(rank_a, in(60 * kSecond), failure));
}

// True once SHUT of `rank` has arrived, long before `dead_after`.
bool receives_shut(ltp_io::Loop& loop, std::uint32_t rank) {
  std::uint8_t byte;
  std::uint64_t token = loop.receive(rank, {0, &byte, 1, 99, 0, 0});
  auto event = loop.wait(token, in(5 * kSecond));
  if (!event) loop.cancel(rank, token);
  return event && event->failure == Failure::closed;
}

void a_full_socket_is_polled_until_writable() {
  ltp_io::Loop a(config(0)), b(config(1));
  join(a, 0, b, 1);
  std::vector<std::uint8_t> source(1'000'000, 9), target(source.size());
  refusal = EAGAIN;
  std::uint64_t before = refused;
  SendRequest request;
  request.data = source.data();
  request.size = source.size();
  request.tag = 1;
  std::uint64_t out = a.send(1, request), into = b.receive(0, {0, target.data(), target.size(), 1, 0, 0});
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  // Two loops that try once in a millisecond at most, and for every datagram that comes or command.
  CHECK(refused > before && refused - before < 1500);
  refusal = 0;
  CHECK(a.wait(out, in(60 * kSecond)) && b.wait(into, in(60 * kSecond)));
  CHECK(source == target);
}

void shut_waits_for_a_full_socket() {
  ltp_io::Loop a(config(0)), b(config(1));
  join(a, 0, b, 1);
  refusal = EAGAIN;
  std::thread closing([&] { a.close(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  refusal = 0;
  closing.join();
  CHECK(receives_shut(b, 0));
  // But not for ever.
  ltp_io::Loop c(config(2)), d(config(3));
  join(c, 2, d, 3);
  refusal = EAGAIN;
  Time began = monotonic_now();
  c.close();
  CHECK(monotonic_now() - began < 5 * kSecond);
  refusal = 0;
}

void shut_reaches_more_peers_than_one_round_serves() {
  ltp_io::Loop hub(config(0));
  std::vector<std::unique_ptr<ltp_io::Loop>> others;
  for (std::uint32_t rank = 1; rank <= 70; ++rank) {
    others.push_back(std::make_unique<ltp_io::Loop>(config(rank)));
    join(hub, 0, *others.back(), rank);
  }
  hub.close();
  for (auto& other : others) CHECK(receives_shut(*other, 0));
}

void offload_is_disabled_only_when_it_is_the_cause() {
  for (bool large : {true, false}) {
    ltp_io::UdpSocket socket("127.0.0.1", 0, 1 << 20);
    if (socket.segments() == 1) return;  // a kernel without it
    socket.queue({parse_address("127.0.0.1", socket.port()), 1000, 2000});
    refusal = EINVAL;
    too_large = large;
    CHECK(socket.flush() && !socket.pending());
    CHECK((socket.segments() > 1) == large);
    CHECK(socket.stats().datagrams_sent == (large ? 0 : 2));
    refusal = 0;
    too_large = false;
  }
}

}  // namespace

int main() {
  a_full_socket_is_polled_until_writable();
  shut_waits_for_a_full_socket();
  shut_reaches_more_peers_than_one_round_serves();
  offload_is_disabled_only_when_it_is_the_cause();
  return gradwire::test::finish();
}
