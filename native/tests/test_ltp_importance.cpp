// The sending order: by energy in bands, and what a transfer that is closed early has lost.
#include <cmath>
#include <numeric>
#include <set>

#include "ltp/deadlines.h"
#include "ltp/outgoing.h"
#include "tests/check.h"
#include "tests/world.h"

using namespace gradwire;
using namespace gradwire::ltp;
using namespace gradwire::ltp::test;

namespace {

constexpr std::uint64_t kSpan = 256;

// Layers of very different gradients: the energy of a span is 4^-(layer's place in a drawn order).
std::shared_ptr<Importance> layered(std::uint64_t size, std::uint64_t layers, std::uint64_t seed) {
  auto importance = std::make_shared<Importance>();
  importance->span = kSpan;
  std::uint64_t spans = size / kSpan;
  Permutation place(layers, seed);
  Random random(seed);
  for (std::uint64_t i = 0; i < spans; ++i) {
    double energy = std::pow(4.0, -static_cast<double>(place(i * layers / spans)));
    importance->energies.push_back(static_cast<float>(energy * (0.5 + random.uniform())));
  }
  return importance;
}

SendRequest request_of(const std::vector<std::uint8_t>& bytes, std::uint32_t tolerance,
                       std::shared_ptr<const Importance> importance, std::uint64_t seed = 1) {
  SendRequest request{1, bytes.data(), bytes.size(), 1, 4, 0, tolerance, {}, seed};
  request.importance = std::move(importance);
  return request;
}

// The share of the energy in ranges of bytes.
double energy_of(const Importance& importance, const std::vector<ByteRange>& ranges) {
  double total = 0, part = 0;
  for (float energy : importance.energies) total += static_cast<double>(energy);
  for (const ByteRange& range : ranges)
    for (std::uint64_t at = range.offset; at < range.offset + range.length; at += 4)
      if (at / kSpan < importance.energies.size())
        part += static_cast<double>(importance.energies[at / kSpan]) * 4 / kSpan;
  return part / total;
}

void bands_fall_in_energy_and_are_sequential_inside() {
  std::vector<std::uint8_t> bytes(600'000);
  auto importance = layered(bytes.size(), 6, 5);
  Outgoing transfer(0, request_of(bytes, 900'000, importance), 1429, 0);
  Outgoing::Piece piece;
  std::size_t sent = 0;
  int backwards = 0;
  std::uint64_t last = 0;
  double shares = 0, half = 0;
  while (transfer.next(1429, piece)) {
    backwards += piece.first < last;
    last = piece.first;
    sent += piece.bytes.size();
    shares += read_share(*piece.share);
    if (sent < bytes.size() / 2) half = shares;
  }
  CHECK(sent == bytes.size());
  CHECK(shares >= 1 && shares < 1.001);
  CHECK(half > 0.98);          // three of six layers have all but 1/64
  CHECK(backwards <= 2 * 16);  // once a band, and where it passes the end
}

void lost_energy_is_sent_again_before_lesser_bands() {
  std::vector<std::uint8_t> bytes(600'000);
  Outgoing transfer(0, request_of(bytes, 900'000, layered(bytes.size(), 6, 5)), 1429, 0);
  Outgoing::Piece first, piece;
  CHECK(transfer.next(1429, first));
  for (int i = 0; i < 20; ++i) transfer.next(1429, piece);
  transfer.on_lost(first.first, first.count);
  int until = 0;
  double at = 1;
  while (transfer.next(1429, piece) && !piece.again) {
    ++until;
    at = read_share(*piece.share);
  }
  CHECK(piece.again && piece.first == first.first);
  CHECK(until > 10 && until < 200 && at > read_share(*first.share) / 8);  // at the end of its band
}

void orders_without_energies_visit_everything_once() {
  std::vector<std::uint8_t> bytes(300'001);
  for (std::uint32_t tolerance : {kWhole, 900'000u}) {
    Outgoing transfer(0, request_of(bytes, tolerance, nullptr, 7), 1429, 0);
    Outgoing::Piece piece;
    std::set<std::uint32_t> seen;
    std::size_t sent = 0;
    bool sorted = true;
    std::uint32_t last = 0;
    while (transfer.next(1429, piece)) {
      CHECK(seen.insert(piece.first).second && !piece.share);
      sorted &= piece.first >= last;
      last = piece.first;
      sent += piece.bytes.size();
    }
    CHECK(sent == bytes.size() && sorted == (tolerance == kWhole));
  }
}

// A record may fill the smallest packet; then there is no room for a share of the energy.
void records_that_fill_a_packet_are_sent_without_energies() {
  std::vector<std::uint8_t> bytes(50'000);
  SendRequest request = request_of(bytes, 900'000, layered(bytes.size(), 6, 5));
  request.record = kBaseDatagram - kSealedOverhead - kDataHeader;
  Outgoing transfer(0, request, request.record, 0);
  Outgoing::Piece piece;
  std::size_t sent = 0;
  while (transfer.next(request.record, piece)) {
    CHECK(!piece.share);
    sent += piece.bytes.size();
  }
  CHECK(sent == bytes.size() && transfer.header() == kDataHeader);
}

void the_share_of_energy_is_read_as_written() {
  for (double share : {1.0, 0.37, 1e-3, 2e-7, 3e-10})
    CHECK(read_share(write_share(share)) >= share && read_share(write_share(share)) < 1.0004 * share);
  CHECK(write_share(1) == 0 && write_share(0) == 65535);
}

struct Closed {
  double energy_lost = 0, bytes_lost = 0;
};

// Sends at `loss`, with a deadline at `share` of the time that the bytes take (0: none).
Closed closed_early(bool important, double loss, double share, std::uint64_t seed) {
  World world(seed);
  PipeSpec spec;
  spec.loss = loss;
  Host &a = world.add(0), &b = world.add(1);
  world.link(0, 1, spec);
  world.connect(a, b);
  world.run(kSecond);
  auto source = random_bytes(2'000'000, seed);
  std::vector<std::uint8_t> target(source.size());
  Closed result;
  constexpr int kRounds = 6;
  for (int round = 0; round < kRounds; ++round) {
    auto importance = layered(source.size(), 6, seed + static_cast<std::uint64_t>(round));
    b.events.clear();
    auto cut = static_cast<Time>(share * static_cast<double>(source.size()) / spec.rate * kSecond);
    b.endpoint->post(world.now, 0, {1, target.data(), target.size(), 1, cut, cut});
    SendRequest request =
        request_of(source, 900'000, important ? importance : nullptr, seed * 100 + static_cast<std::uint64_t>(round));
    a.endpoint->send(world.now, 1, std::move(request));
    CHECK(world.run(20 * kSecond, [&] { return find_event(b, EventType::received, 1) != nullptr; }));
    const Event* event = find_event(b, EventType::received, 1);
    if (!event || round == 0) continue;  // the rate is found in the first
    result.energy_lost += energy_of(*importance, event->missing) / (kRounds - 1);
    result.bytes_lost += 1 - static_cast<double>(event->arrived) / static_cast<double>(event->size) / 1.0;
    world.run(500 * kMillisecond);
  }
  result.bytes_lost /= kRounds - 1;
  return result;
}

void a_transfer_closed_early_has_lost_the_least() {
  for (auto [loss, cut] : {std::pair{0.05, 0.0}, {0.2, 0.0}, {0.0, 0.8}, {0.01, 0.8}}) {
    Closed ordered = closed_early(true, loss, cut, 3), permuted = closed_early(false, loss, cut, 3);
    std::printf("loss %.0f %%, cut at %.1f: energy lost %.5f by importance, %.5f permuted (bytes %.4f, %.4f)\n",
                loss * 100, cut, ordered.energy_lost, permuted.energy_lost, ordered.bytes_lost, permuted.bytes_lost);
    if (permuted.energy_lost > 0.005) CHECK(ordered.energy_lost < permuted.energy_lost / 4);
  }
}

// Almost everything arrives, but not the block with half of the energy: the transfer does not close before that has.
void the_close_rule_counts_energy() {
  World world(4);
  Host &a = world.add(0), &b = world.add(1);
  world.link(0, 1, {});
  world.connect(a, b);
  world.run(kSecond);
  auto source = random_bytes(500'000, 4);
  std::vector<std::uint8_t> target(source.size());
  auto transfer = [&](std::uint64_t tag, std::shared_ptr<const Importance> importance) {
    b.endpoint->post(world.now, 0, {tag, target.data(), target.size(), tag, 0, 0});
    SendRequest request = request_of(source, 900'000, std::move(importance));
    request.token = request.tag = tag;
    a.endpoint->send(world.now, 1, std::move(request));
    CHECK(world.run(20 * kSecond, [&] { return find_event(b, EventType::received, tag) != nullptr; }));
  };
  transfer(1, nullptr);
  auto importance = std::make_shared<Importance>();
  importance->span = kSpan;
  importance->energies.assign(source.size() / kSpan, 1.0f);
  importance->energies[1000] = static_cast<float>(importance->energies.size());
  // The block with half of the energy is sent first. Its first two transmissions get lost.
  int full = 0;
  world.drop = [&](std::uint32_t from, Bytes bytes) {
    bool data = from == 0 && bytes.size() > 1000;
    return data && (full++ == 0 || full == 200);
  };
  transfer(2, importance);
  const Event* event = find_event(b, EventType::received, 2);
  CHECK(event && energy_of(*importance, event->missing) < 0.1);
}

void an_operation_learns_its_deadline_from_the_majority() {
  Settings settings;
  Deadlines deadlines(settings);
  for (std::uint32_t rank = 0; rank < 8; ++rank) deadlines.on_posted(rank, 5);
  for (int i = 0; i < 5; ++i) deadlines.on_ended(5, 120 * kMillisecond);
  CHECK(deadlines.allowance(5) == kNever);
  deadlines.on_ended(5, 100 * kMillisecond);
  CHECK(deadlines.allowance(5) == 240 * kMillisecond);
  for (int i = 0; i < 2; ++i) deadlines.on_ended(5, 500 * kMillisecond);
  CHECK(deadlines.allowance(5) == kNever);
  // Receives of one peer follow each other: there is no deadline for them.
  for (int i = 0; i < 2; ++i)
    for (std::uint32_t rank = 0; rank < 4; ++rank) deadlines.on_posted(rank, 6);
  for (int i = 0; i < 3; ++i) deadlines.on_ended(6, kSecond);
  CHECK(deadlines.allowance(6) == kNever);
  // A receive that failed shows nothing.
  for (std::uint32_t rank = 0; rank < 5; ++rank) deadlines.on_posted(rank, 7);
  deadlines.on_withdrawn(0, 7);
  for (int i = 0; i < 3; ++i) deadlines.on_ended(7, kSecond);
  CHECK(deadlines.allowance(7) == 2 * kSecond);
}

// Eight workers send to one; one link has a quarter of the rate of the others. Its sender knows that and promises no
// more, so only the other transfers show that it is late.
void a_straggler_is_cut_at_the_deadline_of_its_operation() {
  constexpr std::uint32_t kWorkers = 8, kLate = 3;
  World world(6);
  Host& server = world.add(kWorkers);
  std::vector<Host*> workers;
  for (std::uint32_t i = 0; i < kWorkers; ++i) {
    PipeSpec spec;
    if (i == 0) spec.rate /= 4;
    workers.push_back(&world.add(i));
    world.link(i, kWorkers, spec);
    world.connect(*workers[i], server);
  }
  world.run(kSecond);
  auto source = random_bytes(1'000'000, 6);
  auto importance = layered(source.size(), 6, 6);
  std::vector<std::vector<std::uint8_t>> targets(kWorkers, std::vector<std::uint8_t>(source.size()));
  Time took[2] = {};
  for (bool tolerant : {false, true})
    for (std::uint64_t round = 0; round < 4; ++round) {
      server.events.clear();
      Time start = world.now;
      for (std::uint32_t i = 0; i < kWorkers; ++i) {
        server.endpoint->post(start, i, {i, targets[i].data(), source.size(), round + 1, 0, 0});
        SendRequest request = request_of(source, tolerant ? 980'000 : kWhole, tolerant ? importance : nullptr, round);
        request.tag = round + 1;
        if (i != kLate) workers[i]->endpoint->send(start, kWorkers, std::move(request));
      }
      // One rank computes for longer than the others need to send: it is not late, and nothing of it is lost.
      world.run(400 * kMillisecond);
      SendRequest request = request_of(source, tolerant ? 980'000 : kWhole, tolerant ? importance : nullptr, round);
      request.tag = round + 1;
      workers[kLate]->endpoint->send(world.now, kWorkers, std::move(request));
      CHECK(world.run(20 * kSecond, [&] { return server.events.size() == kWorkers; }));
      for (const Event& event : server.events) {
        double lost = energy_of(*importance, event.missing);
        CHECK(lost < 0.05);
        if (event.token) CHECK(event.arrived >= event.size * 98 / 100);
        if (event.token == 0 && round == 3) took[tolerant] = event.elapsed;
      }
      world.run(300 * kMillisecond);
    }
  std::printf("straggler at a quarter of the rate: %.0f ms reliably, %.0f ms with the operation's deadline\n",
              static_cast<double>(took[0]) / 1e6, static_cast<double>(took[1]) / 1e6);
  CHECK(took[1] < took[0] * 3 / 4);
}

}  // namespace

int main() {
  bands_fall_in_energy_and_are_sequential_inside();
  lost_energy_is_sent_again_before_lesser_bands();
  orders_without_energies_visit_everything_once();
  records_that_fill_a_packet_are_sent_without_energies();
  the_share_of_energy_is_read_as_written();
  a_transfer_closed_early_has_lost_the_least();
  the_close_rule_counts_energy();
  an_operation_learns_its_deadline_from_the_majority();
  a_straggler_is_cut_at_the_deadline_of_its_operation();
  return gradwire::test::finish();
}
