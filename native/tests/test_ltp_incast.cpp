// Eight workers send to one server at once through a shallow queue: what LTP was made for.
#include "tests/check.h"
#include "tests/world.h"

using namespace gradwire;
using namespace gradwire::ltp;
using namespace gradwire::ltp::test;

namespace {

struct Result {
  double median_ms = 0, tail_ms = 0, arrived = 0;
};

Result incast(double loss, std::uint32_t tolerance) {
  constexpr std::uint32_t kWorkers = 8, kServer = 100, kRounds = 20, kWarm = 5;
  constexpr std::size_t kSize = 250'000;
  World world(1);
  PipeSpec spec;
  spec.rate = 6.25e6;
  spec.queue = 64e3;  // half a bandwidth-delay product
  spec.loss = loss;
  auto shared = world.pipe(spec);
  PipeSpec back = spec;
  back.rate = back.queue = 1e9;
  Host& server = world.add(kServer);
  std::vector<Host*> workers;
  for (std::uint32_t i = 0; i < kWorkers; ++i) {
    workers.push_back(&world.add(i));
    world.route(i, kServer, shared);
    world.route(kServer, i, world.pipe(back));
    world.connect(*workers[i], server);
  }
  world.run(kSecond);
  std::vector<std::uint8_t> source(kSize, 1);
  std::vector<std::vector<std::uint8_t>> targets(kWorkers, std::vector<std::uint8_t>(kSize));
  std::vector<double> times;
  Result result;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    server.events.clear();
    Time start = world.now;
    for (std::uint32_t i = 0; i < kWorkers; ++i) {
      server.endpoint->post(start, i, {i, targets[i].data(), kSize, round, 0, 0});
      workers[i]->endpoint->send(start, kServer,
                                 {round, source.data(), kSize, round, 4, 0, tolerance, {}, round * kWorkers + i});
    }
    std::size_t seen = 0;
    CHECK(world.run(60 * kSecond, [&] {
      for (; seen < server.events.size() && round >= kWarm; ++seen) {
        times.push_back(static_cast<double>(world.now - start) / kMillisecond);
        result.arrived += static_cast<double>(server.events[seen].arrived) / kSize;
      }
      return server.events.size() == kWorkers;
    }));
    world.run(50 * kMillisecond);
  }
  std::sort(times.begin(), times.end());
  CHECK(times.size() == (kRounds - kWarm) * kWorkers);
  result.median_ms = times[times.size() / 2];
  result.tail_ms = times[times.size() * 99 / 100];
  result.arrived /= static_cast<double>(times.size());
  std::printf("loss %.0f %%, p %.2f: p50 %.0f ms, p99 %.0f ms, arrived %.3f\n", loss * 100, tolerance / 1e6,
              result.median_ms, result.tail_ms, result.arrived);
  return result;
}

}  // namespace

int main() {
  constexpr double kIdeal = 8 * 250e3 / 6.25e6 * 1e3;  // ms for the bytes alone, all eight
  for (double loss : {0.0, 0.01}) {
    Result tolerant = incast(loss, 980'000);
    CHECK(tolerant.tail_ms / tolerant.median_ms < 1.5);
    CHECK(tolerant.tail_ms < 1.6 * kIdeal);
    CHECK(tolerant.arrived > 0.95);
  }
  Result reliable = incast(0.01, kWhole);
  CHECK(reliable.arrived == 1);
  return gradwire::test::finish();
}
