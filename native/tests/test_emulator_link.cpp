// The link model in virtual time: rate, queue, loss, delay, traces, and what a change does to what is queued.
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "emulator/link.h"
#include "tests/check.h"

using namespace gradwire::emulator;

namespace {

constexpr uint32_t kOverhead = 38;
constexpr Nanoseconds kMs = 1'000'000, kSecond = 1000 * kMs;

// A UDP packet of `length` bytes, or a super-packet of `segments` payloads of `payload` bytes each.
PacketPtr udp(uint32_t length, uint16_t gso_size = 0) {
  std::vector<uint8_t> bytes(length, 0);
  bytes[0] = 0x45;
  bytes[9] = 17;
  bytes[2] = static_cast<uint8_t>(length >> 8);
  bytes[3] = static_cast<uint8_t>(length);
  OffloadHeader offload;
  offload.gso_size = gso_size;
  offload.gso_type = gso_size ? 5 : 0;
  return std::make_unique<Packet>(bytes.data(), length, offload);
}

struct Arrival {
  Nanoseconds due;
  uint32_t segments;
};

std::vector<Arrival> drain(Link& link, Nanoseconds until) {
  std::vector<Arrival> out;
  link.poll(until, [&](PacketPtr packet) { out.push_back({packet->due, packet->segments()}); });
  return out;
}

void serves_at_its_rate_and_delays() {
  LinkValues values;
  values.rate = 12.5e6;  // 100 Mbit/s
  values.delay = 10 * kMs;
  Link link(values, 1, kOverhead);
  for (int i = 0; i < 100; ++i) link.offer(5 * kMs, udp(1500));
  const auto out = drain(link, 1000 * kMs);
  CHECK(out.size() == 100);
  const double expected = 5e6 + 100 * 1538 / 12.5e6 * 1e9 + 10e6;
  CHECK(std::abs(static_cast<double>(out.back().due) - expected) < 1000);
  CHECK(drain(link, 2000 * kMs).empty());
}

// The emulator wakes late and finds a packet that arrived long after the previous one had left.
void no_packet_leaves_before_it_arrived() {
  LinkValues values;
  values.rate = 1.538e6;  // a full packet takes 1 ms
  values.delay = 10 * kMs;
  Link link(values, 1, kOverhead);
  link.offer(0, udp(1500));
  link.offer(5 * kMs, udp(1500));
  const auto out = drain(link, 100 * kMs);
  CHECK(out.size() == 2);
  CHECK(std::abs(static_cast<double>(out[0].due - 11 * kMs)) < 1000);
  CHECK(std::abs(static_cast<double>(out[1].due - 16 * kMs)) < 1000);
}

void drops_the_tail_by_bytes() {
  LinkValues values;
  values.rate = 1e6;
  values.queue = 10 * 1538;
  Link link(values, 1, kOverhead);
  for (int i = 0; i < 30; ++i) link.offer(0, udp(1500));
  CHECK(link.counters().queue_drops == 20);
  link.offer(0, udp(100));  // smaller, but there is no room for it either
  CHECK(link.counters().queue_drops == 21);
  link.offer(2 * kMs, udp(1500));  // 2000 bytes have been served by now
  CHECK(link.counters().queue_drops == 21);
  CHECK(drain(link, 1000 * kMs).size() == 11);
}

void loses_wire_packets_not_super_packets() {
  LinkValues values;
  values.loss = 0.01;
  Link link(values, 7, kOverhead);
  uint64_t crossed = 0;
  for (int i = 0; i < 5000; ++i) {
    link.offer(i, udp(28 + 40 * 1000, 1000));
    for (const Arrival& a : drain(link, i)) crossed += a.segments;
  }
  const double n = 5000.0 * 40;
  CHECK(link.counters().offered == 200000);
  CHECK(crossed + link.counters().loss_drops == 200000);
  CHECK(std::abs(static_cast<double>(link.counters().loss_drops) - n * 0.01) < 4 * std::sqrt(n * 0.01 * 0.99));
}

void same_seed_same_losses() {
  LinkValues values;
  values.loss = 0.1;
  std::vector<bool> first, second;
  for (auto* got : {&first, &second}) {
    Link link(values, 42, kOverhead);
    for (int i = 0; i < 500; ++i) {
      link.offer(i, udp(100));
      got->push_back(drain(link, i).empty());
    }
  }
  CHECK(first == second);
}

Link bursty(double rate, double enter, double leave) {
  LinkValues values;
  values.rate = rate;
  values.burst_enter = enter;
  values.burst_leave = leave;
  return Link(values, 3, kOverhead);
}

void bursts_have_the_configured_mean_and_length() {
  Link link = bursty(RateCurve::kUnlimited, 0.01, 0.25);
  int bursts = 0;
  bool lost_before = false;
  const int n = 400000;
  for (int i = 0; i < n; ++i) {
    link.offer(i, udp(100));
    const bool lost = drain(link, i).empty();
    bursts += lost && !lost_before;
    lost_before = lost;
  }
  const double share = static_cast<double>(link.counters().loss_drops) / n;
  CHECK(std::abs(share - 0.01 / 0.26) < 0.003);
  CHECK(std::abs(static_cast<double>(link.counters().loss_drops) / bursts - 4.0) < 0.2);
}

// Packets a second apart on a link that serves 83 in between: a burst of four never takes two of them, and they are
// lost as often as those of a full link.
void a_burst_ends_while_the_link_is_idle() {
  Link link = bursty(125e3, 0.05, 0.25);
  int lost = 0, again = 0;
  bool before = false;
  const int n = 40000;
  for (int i = 1; i <= n; ++i) {
    link.offer(i * kSecond, udp(100));
    const bool gone = drain(link, i * kSecond + kSecond / 2).empty();
    lost += gone;
    again += gone && before;
    before = gone;
  }
  const double share = static_cast<double>(lost) / n;
  CHECK(std::abs(share - 0.05 / 0.30) < 0.01);
  CHECK(std::abs(static_cast<double>(again) / lost - share) < 0.02);
}

void a_full_link_has_bursts_by_the_packet() {
  Link link = bursty(125e3, 0.01, 0.25);
  const int n = 200000;
  for (int i = 0; i < n; ++i) link.offer(0, udp(1400));
  uint64_t bursts = 0, seen = 0;
  for (Nanoseconds at = link.next_departure(); at != kNever; at = link.next_departure()) {
    const uint64_t drops = link.counters().loss_drops;
    drain(link, at);
    const bool gone = link.counters().loss_drops > drops;
    bursts += gone && !seen;
    seen = gone;
  }
  const auto drops = static_cast<double>(link.counters().loss_drops);
  CHECK(std::abs(drops / n - 0.01 / 0.26) < 0.003);
  CHECK(std::abs(drops / static_cast<double>(bursts) - 4.0) < 0.3);
}

// A chain that changes its state with every step loses every second packet of a full link, also across a change of its
// rate.
void a_new_rate_does_not_turn_service_time_into_idle_time() {
  Link link = bursty(1538, 1, 1);  // a full packet takes 1 s
  for (int i = 0; i < 6; ++i) link.offer(0, udp(1500));
  CHECK(drain(link, 2 * kSecond).size() == 1);
  LinkValues values = link.values();
  values.rate = 1.538e6;
  link.change(2 * kSecond + kSecond / 2, values);
  CHECK(drain(link, 3 * kSecond).size() == 2);
  CHECK(link.counters().loss_drops == 3);
  link.offer(3 * kSecond + kMs, udp(1500));
  link.offer(3 * kSecond + kMs, udp(1500));
  CHECK(drain(link, 4 * kSecond).size() == 1);
}

void jitter_keeps_order_and_mean() {
  LinkValues values;
  values.delay = 20 * kMs;
  values.jitter = 2 * kMs;
  Link link(values, 5, kOverhead);
  double sum = 0, squares = 0;
  Nanoseconds last = 0;
  const int n = 200000;
  for (int i = 0; i < n; ++i) {
    const Nanoseconds now = i * kMs / 2;
    link.offer(now, udp(100));
    const auto out = drain(link, now);
    CHECK(out.size() == 1 && out[0].due >= last);
    last = out[0].due;
    const double delay = static_cast<double>(last - now) / 1e6;
    sum += delay;
    squares += delay * delay;
  }
  const double mean = sum / n;
  CHECK(std::abs(mean - 20) < 0.3);
  CHECK(std::abs(std::sqrt(squares / n - mean * mean) - 2) < 0.3);
}

void a_change_of_rate_keeps_the_backlog_in_bytes() {
  LinkValues values;
  values.rate = 1e6;
  Link link(values, 1, 0);
  for (int i = 0; i < 10; ++i) link.offer(0, udp(1000));
  CHECK(drain(link, 5 * kMs).size() == 5);
  values.rate = 0.1e6;
  link.change(5 * kMs, values);
  CHECK(std::abs(link.backlog(5 * kMs) - 5000) < 1);
  CHECK(drain(link, 54 * kMs).size() == 4);
  CHECK(drain(link, 56 * kMs).size() == 1);
}

void a_trace_with_zero_rate_delays_and_repeats() {
  LinkValues values;
  Link link(values, 1, 0);
  link.replay(0, RateCurve({{0, 1e6}, {10 * kMs, 0}, {30 * kMs, 2e6}}, 40 * kMs, 0));  // 30000 bytes in 40 ms
  for (int i = 0; i < 60; ++i) link.offer(0, udp(1000));
  CHECK(drain(link, 10 * kMs).size() == 10);
  CHECK(drain(link, 30 * kMs).empty());
  CHECK(drain(link, 40 * kMs).size() == 20);
  CHECK(drain(link, 80 * kMs).size() == 30);
}

void a_packet_above_the_mtu_is_dropped() {
  LinkValues values;
  values.mtu = 1400;
  Link link(values, 1, kOverhead);
  link.offer(0, udp(1500));
  link.offer(0, udp(1400));
  CHECK(drain(link, 1).size() == 1);
  CHECK(link.counters().mtu_drops == 1);
}

void a_link_that_never_serves_never_departs() {
  Link link(LinkValues{}, 1, 0);
  link.replay(0, RateCurve({{0, 0.0}}, 10 * kMs, 0));
  link.offer(0, udp(100));
  CHECK(link.next_departure() == kNever);
}

// Numbered by their length, so that packets and single wire packets of a super-packet can be told apart.
void delayed_packets_are_reordered() {
  LinkValues values;
  values.rate = 1.538e6;  // a full packet takes 1 ms
  values.delay = 10 * kMs;
  values.reorder = 0.1;
  values.reorder_by = 3 * kMs;
  Link link(values, 5, kOverhead);
  std::vector<std::pair<Nanoseconds, uint32_t>> out;
  for (uint32_t i = 0; i < 900; ++i) link.offer(0, udp(600 + i));
  link.poll(kSecond, [&](PacketPtr packet) { out.emplace_back(packet->due, packet->length()); });
  CHECK(out.size() == 900);
  CHECK(link.counters().delivered == 900);
  const uint64_t held = link.counters().reordered;
  CHECK(held > 60 && held < 120);
  uint64_t late = 0, overtaken = 0;
  for (size_t i = 1; i < out.size(); ++i) {
    CHECK(out[i].second == out[i - 1].second + 1);  // they leave the queue in order
    overtaken += out[i].first < out[i - 1].first;
  }
  Nanoseconds served = 0;
  for (const auto& [due, length] : out) {
    served += static_cast<Nanoseconds>((length + kOverhead) / 1.538e6 * 1e9);
    const Nanoseconds extra = due - served - 10 * kMs;
    CHECK(std::abs(static_cast<double>(extra)) < 2000 || std::abs(static_cast<double>(extra - 3 * kMs)) < 2000);
    late += extra > kMs;
  }
  CHECK(late == held);
  CHECK(overtaken > held / 2);  // of two held back in a row the first is not overtaken by the second
}

void single_wire_packets_of_a_super_packet_are_delayed() {
  LinkValues values;
  values.reorder = 0.1;
  values.reorder_by = 2 * kMs;
  Link link(values, 5, kOverhead);
  link.offer(0, udp(28 + 40 * 1000, 1000));
  uint32_t in_time = 0, late = 0;
  for (const Arrival& a : drain(link, 0)) {
    (a.due == 0 ? in_time : late) += a.segments;
    CHECK(a.due == 0 || (a.due == 2 * kMs && a.segments == 1));
  }
  CHECK(in_time + late == 40);
  CHECK(late > 0 && late == link.counters().reordered);
}

void a_share_of_the_packets_arrives_twice() {
  LinkValues values;
  values.duplicate = 0.2;
  Link link(values, 9, kOverhead);
  uint64_t arrived = 0;
  for (int i = 0; i < 1000; ++i) {
    link.offer(i, udp(28 + 10 * 1000, 1000));
    for (const Arrival& a : drain(link, i)) arrived += a.segments;
  }
  const uint64_t copies = link.counters().duplicated;
  CHECK(std::abs(static_cast<double>(copies) - 2000) < 4 * std::sqrt(10000 * 0.2 * 0.8));
  CHECK(arrived == 10000 + copies);
  CHECK(link.counters().delivered == arrived);
  CHECK(link.counters().offered == 10000);
}

void a_copy_is_the_same_packet() {
  LinkValues values;
  values.duplicate = 1;
  Link link(values, 1, kOverhead);
  PacketPtr packet = udp(100);
  packet->target_host = 7;
  const std::vector<uint8_t> bytes(packet->data(), packet->data() + packet->length());
  link.offer(0, std::move(packet));
  int copies = 0;
  link.poll(0, [&](PacketPtr one) {
    ++copies;
    CHECK(one->target_host == 7 && one->length() == bytes.size());
    CHECK(std::memcmp(one->data(), bytes.data(), bytes.size()) == 0);
  });
  CHECK(copies == 2);
}

std::vector<Nanoseconds> arrivals(uint64_t seed, double reorder, double duplicate) {
  LinkValues values;
  values.rate = 1.538e6;
  values.reorder = reorder;
  values.reorder_by = 5 * kMs;
  values.duplicate = duplicate;
  Link link(values, seed, kOverhead);
  for (int i = 0; i < 200; ++i) link.offer(0, udp(1500));
  std::vector<Nanoseconds> out;
  for (const Arrival& a : drain(link, kSecond)) out.push_back(a.due);
  return out;
}

void one_seed_reorders_and_duplicates_the_same() {
  CHECK(arrivals(3, 0.1, 0.1) == arrivals(3, 0.1, 0.1));
  CHECK(arrivals(3, 0.1, 0.1) != arrivals(4, 0.1, 0.1));
}

}  // namespace

int main() {
  serves_at_its_rate_and_delays();
  no_packet_leaves_before_it_arrived();
  drops_the_tail_by_bytes();
  loses_wire_packets_not_super_packets();
  same_seed_same_losses();
  bursts_have_the_configured_mean_and_length();
  a_burst_ends_while_the_link_is_idle();
  a_full_link_has_bursts_by_the_packet();
  a_new_rate_does_not_turn_service_time_into_idle_time();
  jitter_keeps_order_and_mean();
  a_change_of_rate_keeps_the_backlog_in_bytes();
  a_trace_with_zero_rate_delays_and_repeats();
  a_packet_above_the_mtu_is_dropped();
  a_link_that_never_serves_never_departs();
  delayed_packets_are_reordered();
  single_wire_packets_of_a_super_packet_are_delayed();
  a_share_of_the_packets_arrives_twice();
  a_copy_is_the_same_packet();
  one_seed_reorders_and_duplicates_the_same();
  return gradwire::test::finish();
}
