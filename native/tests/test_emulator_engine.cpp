// The network in virtual time: paths over several links, incast at a shared queue, scheduled changes, a restart by
// begin().
#include <cmath>
#include <vector>

#include "emulator/engine.h"
#include "tests/check.h"

using namespace gradwire::emulator;

namespace {

constexpr Nanoseconds kMs = 1'000'000;

PacketPtr packet(uint16_t source, uint16_t target, uint32_t length = 1500) {
  std::vector<uint8_t> bytes(length, 0);
  bytes[0] = 0x45;
  auto made = std::make_unique<Packet>(bytes.data(), length, OffloadHeader{});
  made->source_host = source;
  made->target_host = target;
  return made;
}

LinkValues line(double rate, Nanoseconds delay, double queue = 1e9) {
  LinkValues values;
  values.rate = rate;
  values.delay = delay;
  values.queue = queue;
  return values;
}

void delays_of_a_path_add_up() {
  Engine engine(2);
  for (Nanoseconds delay : {1 * kMs, 2 * kMs, 3 * kMs}) engine.add_link(line(RateCurve::kUnlimited, delay), 1, 0);
  engine.set_path(0, 1, {0, 1, 2});
  engine.begin(0);
  CHECK(engine.ingress(kMs, packet(0, 1)));
  CHECK(!engine.ingress(kMs, packet(1, 0)));  // there is no path back
  std::vector<Nanoseconds> due;
  engine.advance(100 * kMs, [&](PacketPtr p) { due.push_back(p->due); });
  CHECK(due == std::vector<Nanoseconds>{7 * kMs});
}

void eight_to_one_overflows_the_shared_queue_only() {
  Engine engine(9);
  for (uint64_t i = 0; i < 8; ++i) engine.add_link(line(125e6, 50'000), i, 38);
  engine.add_link(line(125e6, 50'000, 64 * 1538), 8, 38);
  for (uint32_t i = 0; i < 8; ++i) engine.set_path(i, 8, {i, 8});
  engine.begin(0);
  for (int round = 0; round < 40; ++round) {
    for (uint16_t i = 0; i < 8; ++i) engine.ingress(0, packet(i, 8));
  }
  std::vector<int> got(8);
  engine.advance(1000 * kMs, [&](PacketPtr p) { ++got[p->source_host]; });
  // While 8 x 40 packets arrive at 8 times the rate, 40 leave and 64 wait: the rest is dropped.
  const auto drops = static_cast<double>(engine.link(8).counters().queue_drops);
  CHECK(std::abs(drops - (320 - 104)) <= 8);
  for (size_t i = 0; i < 8; ++i) CHECK(engine.link(i).counters().queue_drops == 0);
  int total = 0;
  for (int count : got) total += count;
  CHECK(total + static_cast<int>(drops) == 320);
}

void a_scheduled_change_happens_on_time_and_begin_undoes_it() {
  Engine engine(2);
  engine.add_link(line(1.538e6, 0), 1, 38);  // one packet a millisecond
  engine.set_path(0, 1, {0});
  engine.add_change({100 * kMs, 0, [](LinkValues& v) { v.rate = 0.1538e6; }});
  engine.begin(0);
  for (int round = 0; round < 2; ++round) {
    const Nanoseconds start = round * 10'000 * kMs;
    if (round == 1) engine.begin(start);
    int early = 0, late = 0;
    for (int i = 0; i < 150; ++i) engine.ingress(start, packet(0, 1));
    engine.advance(start + 100 * kMs, [&](PacketPtr) { ++early; });
    engine.advance(start + 300 * kMs, [&](PacketPtr) { ++late; });
    CHECK(early == 100);
    CHECK(std::abs(late - 20) <= 1);
    engine.advance(start + 9000 * kMs, [](PacketPtr) {});
  }
}

void a_change_by_set_lasts() {
  Engine engine(2);
  engine.add_link(line(1e6, 0), 1, 0);
  engine.set_path(0, 1, {0});
  engine.begin(0);
  engine.set(0, 0, [](LinkValues& v) { v.delay = 5 * kMs; });
  engine.begin(kMs);
  CHECK(engine.link(0).values().delay == 5 * kMs);
}

}  // namespace

int main() {
  delays_of_a_path_add_up();
  eight_to_one_overflows_the_shared_queue_only();
  a_scheduled_change_happens_on_time_and_begin_undoes_it();
  a_change_by_set_lasts();
  return gradwire::test::finish();
}
