// The hot path does not allocate: once a transfer runs, packets leave and arrive without touching the heap.
#include <cstdlib>
#include <new>
#include <vector>

#include "ltp/connection.h"
#include "tests/check.h"

namespace {
std::size_t allocations = 0;
}

void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

using namespace gradwire;
using namespace gradwire::ltp;

int main() {
  Settings settings;
  ConnectionStart left, right;
  left.local = right.remote = 1;
  left.remote = right.local = 2;
  left.confirmed = true;
  left.sealing = right.opening = Secret{1};
  left.opening = right.sealing = Secret{2};
  left.peer_credit = right.peer_credit = 1 << 20;
  left.largest_datagram = right.largest_datagram = 1472;
  left.rtt = right.rtt = kMillisecond;
  Deadlines deadlines(settings);
  Connection a(settings, left, deadlines, 0), b(settings, right, deadlines, 0);
  std::vector<std::uint8_t> source(40'000'000, 3), target(source.size()), packet(2000);
  b.post(0, {1, target.data(), target.size(), 1, 0, 0});
  a.send(0, {1, source.data(), source.size(), 1, 4, 0, kWhole, {}, 1});

  // A path of half a millisecond each way that loses every fiftieth packet of data.
  std::size_t packets = 0, steady_packets = 0, steady_allocations = 0;
  auto move = [&](Connection& from, Connection& to, Time now) {
    while (std::size_t size = from.poll_packet(now, packet)) {
      if (++packets % 50 == 0 && &from == &a) continue;
      SealedHeader header;
      if (parse(Bytes(packet).first(size), header)) to.handle_packet(now, header, MutableBytes(packet).first(size));
    }
  };
  Time now = 0;
  for (; now < 60 * kSecond && b.events().size() < 2; now += 500 * kMicrosecond) {
    std::size_t before_packets = packets, before = allocations;
    a.handle_timeout(now), b.handle_timeout(now);
    move(a, b, now);
    move(b, a, now);
    // The first half fills rings and queues to their working size.
    if (a.stats().counters.bytes_acked > 20'000'000 && a.stats().counters.bytes_acked < 39'000'000) {
      steady_packets += packets - before_packets;
      steady_allocations += allocations - before;
    }
  }
  CHECK(source == target);
  std::printf("%zu allocations in %zu packets\n", steady_allocations, steady_packets);
  CHECK(steady_packets > 10'000);
  CHECK(steady_allocations < steady_packets / 1000);
  return gradwire::test::finish();
}
