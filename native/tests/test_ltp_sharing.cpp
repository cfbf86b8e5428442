// Flows that share one queue, in virtual time: what each gets beside CUBIC, and how long packets wait where there is
// none.
#include "tests/check.h"
#include "tests/world.h"

using namespace gradwire;
using namespace gradwire::ltp;
using namespace gradwire::ltp::test;

namespace {

constexpr double kRate = 2.5e6;  // 20 Mbit/s: few enough packets for a quick test
constexpr Time kForever = 1000 * kSecond;

struct Flow {
  CongestionKind kind = CongestionKind::bbr;
  Time round_trip = 40 * kMillisecond;
  Time start = 0, stop = kForever;
};

struct Shared {
  std::vector<double> shares;  // goodput over the link's rate
  double queue = 0;            // how long a packet waited, in milliseconds, on average
};

// One endless transfer per flow through one queue, which holds the bytes of `depth`; measured from `warm` for
// `measure`.
Shared share(const std::vector<Flow>& flows, Time depth, Time warm, Time measure) {
  World world(1);
  PipeSpec spec;
  spec.rate = kRate;
  spec.delay = kMillisecond;
  spec.queue = kRate * static_cast<double>(depth) / kSecond;
  auto bottleneck = world.pipe(spec);
  // The bytes are not compared here.
  std::vector<std::uint8_t> source(
      static_cast<std::size_t>(kRate * static_cast<double>(warm + measure) / kSecond * 1.1));
  std::vector<std::uint8_t> destination(source.size());
  std::vector<Host*> from, to;
  for (std::uint32_t i = 0; i < flows.size(); ++i) {
    Settings settings;
    settings.congestion = flows[i].kind;
    from.push_back(&world.add(i, settings));
    to.push_back(&world.add(100 + i, settings));
    PipeSpec back = spec;
    back.rate = back.queue = 1e9;
    back.delay = flows[i].round_trip - spec.delay;
    world.route(i, 100 + i, bottleneck);
    world.route(100 + i, i, world.pipe(back));
    world.connect(*from[i], *to[i]);
    to[i]->endpoint->post(world.now, i, {1, destination.data(), destination.size(), 1, 0, 0});
  }
  Time began = world.now, end = began + warm + measure;
  // What happens next, and when: flows start and stop, the measurement begins.
  std::multimap<Time, std::function<void()>> plan;
  std::vector<double> before(flows.size());
  auto acked = [&](std::uint32_t i) {
    return static_cast<double>(from[i]->endpoint->peer(100 + i)->connection->stats().counters.bytes_acked);
  };
  for (std::uint32_t i = 0; i < flows.size(); ++i) {
    plan.emplace(began + flows[i].start, [&, i] {
      from[i]->endpoint->send(world.now, 100 + i, {1, source.data(), source.size(), 1, 4, 0, kWhole, {}, 1});
    });
    if (flows[i].stop < kForever)
      plan.emplace(began + flows[i].stop, [&, i] { CHECK(from[i]->endpoint->cancel(world.now, 100 + i, 1)); });
  }
  double waited = 0, carried = 0;
  plan.emplace(began + warm, [&] {
    for (std::uint32_t i = 0; i < flows.size(); ++i) before[i] = acked(i);
    waited = bottleneck->waited, carried = static_cast<double>(bottleneck->carried);
  });
  for (auto& [at, act] : plan) {
    world.run(at - world.now);
    act();
  }
  world.run(end - world.now);
  Shared result;
  for (std::uint32_t i = 0; i < flows.size(); ++i)
    result.shares.push_back((acked(i) - before[i]) / (kRate * static_cast<double>(measure) / kSecond));
  result.queue = (bottleneck->waited - waited) / (static_cast<double>(bottleneck->carried) - carried) * 1e3;
  return result;
}

Flow cubic(Time start = 0, Time stop = kForever) { return {CongestionKind::cubic, 40 * kMillisecond, start, stop}; }

// Once both have settled; test_ltp_congestion.cpp has queues of one and two products.
void beside_cubic_in_a_deep_queue_both_keep_a_share() {
  struct Case {
    int products;
    double least;  // of LTP
  };
  // The target is 0.3; in eight products LTP has 0.23 to 0.27.
  for (Case one : {Case{4, 0.3}, Case{8, 0.2}})
    for (bool first : {true, false}) {
      Time late = 2 * kSecond;
      Flow ltp{.start = first ? 0 : late};
      auto got = share({ltp, cubic(first ? late : 0)}, one.products * 40 * kMillisecond, 30 * kSecond, 40 * kSecond);
      std::printf("queue of %d products, %s first: ltp %.3f, cubic %.3f\n", one.products, first ? "ltp" : "cubic",
                  got.shares[0], got.shares[1]);
      CHECK(got.shares[0] >= one.least);
      CHECK(got.shares[1] >= 0.3);
    }
}

void flows_of_ltp_keep_the_queue_short(std::size_t count, double most_ms) {
  std::vector<Flow> flows(count);
  for (std::size_t i = 0; i < count; ++i) flows[i].start = static_cast<Time>(i) * 100 * kMillisecond;
  auto got = share(flows, 320 * kMillisecond, 12 * kSecond, 15 * kSecond);
  auto [least, most] = std::minmax_element(got.shares.begin(), got.shares.end());
  std::printf("%zu flows of ltp: queue %.1f ms, shares %.3f to %.3f\n", count, got.queue, *least, *most);
  CHECK(got.queue < most_ms);  // of 320
  CHECK(*least > 0.5 / static_cast<double>(count));
}

// A flow of the long path keeps more in the queue than one of the short path ever would.
void unequal_round_trips_do_not_fill_the_queue() {
  Flow near{.round_trip = 10 * kMillisecond}, far{.round_trip = 100 * kMillisecond, .start = 2 * kSecond};
  auto got = share({near, far}, 320 * kMillisecond, 12 * kSecond, 20 * kSecond);
  std::printf("10 and 100 ms: queue %.1f ms, shares %.3f and %.3f\n", got.queue, got.shares[0], got.shares[1]);
  CHECK(got.queue < 70);  // of 320; the far flow alone may keep 65
}

void the_queue_becomes_short_again_when_cubic_has_left() {
  for (int depth : {4, 8}) {
    auto got = share({{}, {.start = kSecond}, cubic(2 * kSecond, 20 * kSecond)}, depth * 40 * kMillisecond,
                     40 * kSecond, 10 * kSecond);
    std::printf("queue of %d products after cubic: %.1f ms, shares %.3f and %.3f\n", depth, got.queue, got.shares[0],
                got.shares[1]);
    CHECK(got.queue < 50);
  }
}

}  // namespace

int main() {
  beside_cubic_in_a_deep_queue_both_keep_a_share();
  flows_of_ltp_keep_the_queue_short(2, 50);
  // Seven packets a flow, of which each sends six beyond its product; those that start late take the others' queue for
  // the path.
  flows_of_ltp_keep_the_queue_short(10, 130);
  unequal_round_trips_do_not_fill_the_queue();
  the_queue_becomes_short_again_when_cubic_has_left();
  return gradwire::test::finish();
}
