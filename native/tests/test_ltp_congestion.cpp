// Throughput and fairness in virtual time: random loss, shared bottlenecks, CUBIC beside BBR.
#include "ltp/bbr.h"
#include "tests/check.h"
#include "tests/world.h"

using namespace gradwire;
using namespace gradwire::ltp;
using namespace gradwire::ltp::test;

namespace {

constexpr double kRate = 5e6;  // 40 Mbit/s: enough packets for the dynamics, few enough for a quick test

struct Flow {
  Host* from;
  Host* to;
  std::uint64_t acked_before = 0;
};

// Flows i -> 100 + i through one shared queue; each keeps one endless transfer going. Shares of the bottleneck between
// `warm` and `warm + measure`, as goodput over the link's rate.
std::vector<double> shares(const std::vector<CongestionKind>& kinds, PipeSpec spec, Time warm, Time measure,
                           std::uint64_t seed) {
  World world(seed);
  auto bottleneck = world.pipe(spec);
  PipeSpec back = spec;
  back.rate = 1.25e9;
  back.queue = 1e9;
  back.loss = spec.loss;
  std::vector<Flow> flows(kinds.size());
  // All flows share the buffers: the bytes are not compared here.
  std::vector<std::uint8_t> source(
      static_cast<std::size_t>(spec.rate * static_cast<double>(warm + measure) / kSecond * 1.2));
  std::vector<std::uint8_t> destination(source.size());
  for (std::uint32_t i = 0; i < kinds.size(); ++i) {
    Settings settings;
    settings.congestion = kinds[i];
    Flow& flow = flows[i];
    flow.from = &world.add(i, settings);
    flow.to = &world.add(100 + i, settings);
    world.route(i, 100 + i, bottleneck);
    world.route(100 + i, i, world.pipe(back));
    world.connect(*flow.from, *flow.to);
    flow.to->endpoint->post(world.now, i, {1, destination.data(), destination.size(), 1, 0, 0});
    flow.from->endpoint->send(world.now, 100 + i, {1, source.data(), source.size(), 1, 4, 0, kWhole, {}, seed});
    // Not all at once: a newcomer must get its share.
    world.run(500 * kMillisecond);
  }
  auto acked = [&](std::uint32_t i) {
    return flows[i].from->endpoint->peer(100 + i)->connection->stats().counters.bytes_acked;
  };
  world.run(warm);
  for (std::uint32_t i = 0; i < kinds.size(); ++i) flows[i].acked_before = acked(i);
  world.run(measure);
  std::vector<double> result;
  for (std::uint32_t i = 0; i < kinds.size(); ++i)
    result.push_back(static_cast<double>(acked(i) - flows[i].acked_before) /
                     (spec.rate * static_cast<double>(measure) / kSecond));
  return result;
}

PipeSpec link(Time delay, double buffer) {
  PipeSpec spec;
  spec.rate = kRate;
  spec.delay = delay;
  spec.queue = buffer * kRate * 2 * static_cast<double>(delay) / kSecond;
  return spec;
}

// Packets held back are declared lost, then acknowledged: the reported share of losses no longer contains them.
void late_packets_are_not_counted_as_lost() {
  PipeSpec spec = link(20 * kMillisecond, 2);
  spec.reorder = 0.1;
  spec.reorder_by = 30 * kMillisecond;
  World world(5);
  Host& from = world.add(0);
  Host& to = world.add(1);
  world.route(0, 1, world.pipe(spec));
  world.route(1, 0, world.pipe(link(20 * kMillisecond, 2)));
  world.connect(from, to);
  std::vector<std::uint8_t> source(4'000'000), destination(source.size());
  to.endpoint->post(world.now, 0, {1, destination.data(), destination.size(), 1, 0, 0});
  from.endpoint->send(world.now, 1, {1, source.data(), source.size(), 1, 4, 0, kWhole, {}, 7});
  world.run(3 * kSecond);
  auto stats = from.endpoint->peer(1)->connection->stats();
  std::printf("late: %llu of %llu losses were none, share %.4f\n",
              static_cast<unsigned long long>(stats.counters.spurious_losses),
              static_cast<unsigned long long>(stats.counters.packets_lost), stats.loss);
  CHECK(stats.counters.spurious_losses > 10);
  CHECK(stats.loss < 0.01);
}

void random_loss_does_not_slow_bbr() {
  for (double loss : {0.01, 0.02, 0.05}) {
    PipeSpec spec = link(20 * kMillisecond, 1);
    spec.loss = loss;
    double bbr = shares({CongestionKind::bbr}, spec, 3 * kSecond, 6 * kSecond, 3)[0];
    std::printf("loss %.0f %%: bbr %.3f of the link\n", loss * 100, bbr);
    CHECK(bbr > 0.8);
  }
  PipeSpec spec = link(20 * kMillisecond, 1);
  spec.loss = 0.01;
  double cubic = shares({CongestionKind::cubic}, spec, 3 * kSecond, 6 * kSecond, 3)[0];
  std::printf("loss 1 %%: cubic %.3f\n", cubic);
  CHECK(cubic < 0.4);  // our CUBIC slows down under loss as the kernel's does
}

void a_clean_link_is_filled() {
  for (double buffer : {0.25, 1.0, 4.0}) {
    double bbr = shares({CongestionKind::bbr}, link(20 * kMillisecond, buffer), 2 * kSecond, 4 * kSecond, 5)[0];
    double cubic = shares({CongestionKind::cubic}, link(20 * kMillisecond, buffer), 2 * kSecond, 4 * kSecond, 5)[0];
    std::printf("buffer %.2f BDP: bbr %.3f, cubic %.3f\n", buffer, bbr, cubic);
    CHECK(bbr > 0.9);
    CHECK(cubic > 0.75);
  }
}

void two_flows_share_within_a_fifth() {
  for (std::uint64_t seed : {1, 2}) {
    auto share = shares({CongestionKind::bbr, CongestionKind::bbr}, link(20 * kMillisecond, 1), 12 * kSecond,
                        20 * kSecond, seed);
    std::printf("bbr, bbr: %.3f %.3f\n", share[0], share[1]);
    double total = share[0] + share[1];
    CHECK(total > 0.9);
    CHECK(std::abs(share[0] - share[1]) / total < 0.2);
  }
}

void bbr_and_cubic_share_a_link() {
  for (double buffer : {1.0, 2.0}) {
    auto share = shares({CongestionKind::bbr, CongestionKind::cubic}, link(20 * kMillisecond, buffer), 12 * kSecond,
                        25 * kSecond, 4);
    std::printf("buffer %.1f BDP: bbr %.3f, cubic %.3f\n", buffer, share[0], share[1]);
    double total = share[0] + share[1];
    CHECK(total > 0.9);
    // 0.316 in the deeper queue: ProbeRTT drains its share of the queue for 200 ms, and CUBIC keeps its own.
    CHECK(share[0] / total >= 0.3);
    CHECK(share[1] / total >= 0.3);
  }
}

// A server's side: it only received so far, so all its rate samples are of small control frames.
void a_side_that_only_received_starts_at_the_initial_rate() {
  World world(3);
  Settings settings;
  Host &worker = world.add(0, settings), &server = world.add(1, settings);
  PipeSpec spec = link(10 * kMillisecond, 2);
  world.link(0, 1, spec);
  world.connect(worker, server);
  std::vector<std::uint8_t> source(1'000'000, 7), destination(source.size());
  for (std::uint64_t tag = 1; tag <= 5; ++tag) {
    server.endpoint->post(world.now, 0, {tag, destination.data(), destination.size(), tag, 0, 0});
    worker.endpoint->send(world.now, 1, {tag, source.data(), source.size(), tag, 4, 0, kWhole, {}, tag});
    world.run(kSecond);
  }
  worker.endpoint->post(world.now, 1, {9, destination.data(), destination.size(), 9, 0, 0});
  server.endpoint->send(world.now, 0, {9, source.data(), source.size(), 9, 4, 0, kWhole, {}, 9});
  // 1 MB takes 80 ms at this rate; six doublings of the initial window are six round trips of 20 ms.
  world.run(200 * kMillisecond + 80 * kMillisecond);
  std::uint64_t acked = server.endpoint->peer(0)->connection->stats().counters.bytes_acked;
  std::printf("first 1 MB of a side that only received: %llu bytes acknowledged in 280 ms\n",
              static_cast<unsigned long long>(acked));
  CHECK(acked >= source.size());
}

// As in training: up, then down, repeatedly, under loss. What was measured in one phase must still hold after the
// other, and one lost control packet must not end startup at a very low rate.
Time slowest_phase(std::uint64_t seed) {
  World world(seed);
  Settings settings;
  Host &worker = world.add(0, settings), &server = world.add(1, settings);
  PipeSpec spec = link(10 * kMillisecond, 2);
  spec.loss = 0.02;
  world.link(0, 1, spec);
  world.connect(worker, server);
  std::vector<std::uint8_t> source(1'000'000, 7), destination(source.size());
  Time slowest = 0;
  for (std::uint64_t tag = 1; tag <= 8; ++tag) {
    Host &from = tag % 2 ? worker : server, &to = tag % 2 ? server : worker;
    to.endpoint->post(world.now, from.rank, {tag, destination.data(), destination.size(), tag, 0, 0});
    from.endpoint->send(world.now, to.rank, {tag, source.data(), source.size(), tag, 4, 0, kWhole, {}, tag});
    Time began = world.now;
    to.events.clear();
    while (to.events.empty() && world.now - began < 5 * kSecond) world.run(5 * kMillisecond);
    slowest = std::max(slowest, world.now - began);
    world.run(30 * kMillisecond);
  }
  return slowest;
}

void alternating_directions_keep_their_rate() {
  Time slowest = 0;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) slowest = std::max(slowest, slowest_phase(seed));
  std::printf("alternating 1 MB at 2 %% loss: the slowest of 192 took %.0f ms\n",
              static_cast<double>(slowest) / kMillisecond);
  // 80 ms at the rate; startup, and round trips for what was lost twice, come to a few times that.
  CHECK(slowest < 600 * kMillisecond);
}

void one_lost_control_packet_does_not_end_startup() {
  Bbr bbr(1200, 20 * kMillisecond);
  double before = bbr.pacing_rate();
  AckSample sample;
  for (std::uint64_t round = 1; round <= 6; ++round) {
    sample.now = static_cast<Time>(round) * 20 * kMillisecond;
    sample.prior_delivered = sample.delivered;
    sample.delivered += 240;
    sample.acked = 240;
    sample.lost = round == 2 ? 120 : 0;
    sample.rtt = 20 * kMillisecond;
    sample.rate = 12'000;
    sample.app_limited = true;
    bbr.on_ack(sample);
  }
  CHECK(bbr.pacing_rate() >= before);
}

// Trees send both ways at once. ACKs of the fast direction wait behind data of the slow one; that must not slow the
// fast direction.
void data_on_the_reverse_path_does_not_slow_the_forward_path() {
  World world(1);
  Host &one = world.add(0), &other = world.add(1);
  PipeSpec there = link(5 * kMillisecond, 4), back = there;
  back.rate = kRate / 8;
  back.queue = 64e3;
  world.route(0, 1, world.pipe(there));
  world.route(1, 0, world.pipe(back));
  world.connect(one, other);
  std::vector<std::uint8_t> source(50'000'000, 7), destination(source.size());
  for (auto [from, to] : {std::pair(&one, &other), std::pair(&other, &one)}) {
    to->endpoint->post(world.now, from->rank, {1, destination.data(), destination.size(), 1, 0, 0});
    from->endpoint->send(world.now, to->rank, {1, source.data(), source.size(), 1, 4, 0, kWhole, {}, 1});
  }
  auto acked = [](Host& host, std::uint32_t peer) {
    return static_cast<double>(host.endpoint->peer(peer)->connection->stats().counters.bytes_acked);
  };
  world.run(2 * kSecond);
  double fast = acked(one, 1), slow = acked(other, 0);
  world.run(4 * kSecond);
  fast = (acked(one, 1) - fast) / (4 * there.rate), slow = (acked(other, 0) - slow) / (4 * back.rate);
  std::printf("both ways: %.3f of the fast direction, %.3f of the slow one\n", fast, slow);
  CHECK(fast > 0.85);
  CHECK(slow > 0.6);  // ACKs for eight times its rate take their part
}

}  // namespace

int main() {
  late_packets_are_not_counted_as_lost();
  data_on_the_reverse_path_does_not_slow_the_forward_path();
  a_side_that_only_received_starts_at_the_initial_rate();
  one_lost_control_packet_does_not_end_startup();
  alternating_directions_keep_their_rate();
  random_loss_does_not_slow_bbr();
  a_clean_link_is_filled();
  two_flows_share_within_a_fifth();
  bbr_and_cubic_share_a_link();
  return gradwire::test::finish();
}
