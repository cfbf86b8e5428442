// Flow control in virtual time: a transfer without a receive blocks no other, in any order of receives, and outdated
// hints cost a round trip, not a stall.
#include "tests/check.h"
#include "tests/world.h"

using namespace gradwire;
using namespace gradwire::ltp;
using namespace gradwire::ltp::test;

namespace {

struct Pair {
  explicit Pair(std::uint64_t seed, double loss, std::uint32_t credit = 50'000) : world(seed) {
    Settings settings;
    settings.credit = credit;
    PipeSpec spec;
    spec.loss = loss;
    spec.reorder = loss;
    a = &world.add(0, settings);
    b = &world.add(1, settings);
    world.link(0, 1, spec);
    world.connect(*a, *b);
    CHECK(world.run(20 * kSecond, [&] { return connected(*a, 1) && connected(*b, 0); }));
  }
  void send(std::uint64_t token, const std::vector<std::uint8_t>& bytes, std::uint64_t tag,
            std::uint32_t tolerance = kWhole) {
    a->endpoint->send(world.now, 1, {token, bytes.data(), bytes.size(), tag, 1, 0, tolerance, {}, token});
  }
  void post(std::uint64_t token, std::vector<std::uint8_t>& bytes, std::uint64_t tag) {
    b->endpoint->post(world.now, 0, {token, bytes.data(), bytes.size(), tag, 0, 0});
  }
  bool received(std::uint64_t token, Time limit = 10 * kSecond) {
    return world.run(limit, [&] { return find_event(*b, EventType::received, token); });
  }
  bool sent(std::uint64_t token, Time limit = 10 * kSecond) {
    return world.run(limit, [&] { return find_event(*a, EventType::sent, token); });
  }

  World world;
  Host *a, *b;
};

std::vector<std::vector<std::uint8_t>> sources(std::size_t count, std::size_t size) {
  std::vector<std::vector<std::uint8_t>> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(random_bytes(size, i + 1));
  return all;
}

// Far more than the credit allows, and (with 1500) more than the receiver's window of transfer ids holds.
void receives_in_the_opposite_order_are_all_served(std::size_t count, std::size_t size, double loss,
                                                   std::uint32_t tolerance) {
  Pair pair(count, loss);
  auto source = sources(count, size);
  std::vector<std::vector<std::uint8_t>> boxes(count, std::vector<std::uint8_t>(size, 0xee));
  for (std::size_t i = 0; i < count; ++i) pair.send(i, source[i], i, tolerance);
  pair.world.run(200 * kMillisecond);
  for (std::size_t i = count; i-- > 0;) {
    pair.post(1'000'000 + i, boxes[i], i);
    bool came = pair.received(1'000'000 + i);
    CHECK(came);
    if (!came) return;
  }
  for (std::size_t i = 0; i < count; ++i) CHECK(pair.sent(i));
  if (tolerance == kWhole) CHECK(boxes == source);
}

void unclaimed_transfers_block_no_other(double loss) {
  Pair pair(7, loss, 100'000);
  auto unwanted = sources(10, 80'000);
  for (std::size_t i = 0; i < unwanted.size(); ++i) pair.send(100 + i, unwanted[i], 100 + i);
  auto source = random_bytes(300'000, 99);
  std::vector<std::uint8_t> box(source.size());
  pair.send(1, source, 1);
  pair.world.run(kSecond);
  pair.post(2, box, 1);
  CHECK(pair.received(2));
  CHECK(box == source);
  // The ten still arrive when their receives are posted, the middle one first.
  for (std::uint64_t i : {5, 0, 9, 1, 2, 3, 4, 6, 7, 8}) {
    std::vector<std::uint8_t> late(80'000);
    pair.post(200 + i, late, 100 + i);
    CHECK(pair.received(200 + i));
    CHECK(late == unwanted[i]);
  }
}

// A receive is cancelled after its POSTED was sent: the sender expects a buffer that does not exist.
void a_cancelled_receive_makes_its_sender_wait_and_blocks_no_other(double loss) {
  Pair pair(3, loss, 10'000);
  auto source = random_bytes(2'000'000, 1), other = random_bytes(2'000'000, 2);
  std::vector<std::uint8_t> box(source.size()), second(source.size());
  for (std::uint64_t token = 50; token < 53; ++token) {
    pair.post(token, box, 5);
    pair.world.run(100 * kMillisecond);
    CHECK(pair.b->endpoint->cancel(pair.world.now, 0, token));
  }
  pair.send(1, source, 5);
  pair.post(60, second, 6);
  pair.send(2, other, 6);
  CHECK(pair.received(60, 3 * kSecond));
  CHECK(second == other);
  pair.world.run(2 * kSecond);
  std::uint64_t before = pair.world.sent_bytes[0];
  pair.world.run(5 * kSecond);
  // Held, not sent over and over: keepalives only.
  CHECK(pair.world.sent_bytes[0] - before < 20'000);
  CHECK(!find_event(*pair.a, EventType::sent, 1));
  pair.post(61, box, 5);
  CHECK(pair.received(61));
  CHECK(box == source);
}

void transfers_of_one_tag_are_paired_in_order(double loss) {
  constexpr std::size_t kCount = 30;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Pair pair(seed, loss);
    auto source = sources(kCount, 9'000);
    std::vector<std::vector<std::uint8_t>> boxes(kCount, std::vector<std::uint8_t>(9'000));
    for (std::size_t i = 0; i < kCount / 3; ++i) pair.post(1000 + i, boxes[i], 5);
    for (std::size_t i = 0; i < kCount; ++i) pair.send(i, source[i], 5);
    pair.world.run(300 * kMillisecond);
    for (std::size_t i = kCount / 3; i < kCount; ++i) pair.post(1000 + i, boxes[i], 5);
    for (std::size_t i = 0; i < kCount; ++i) CHECK(pair.received(1000 + i));
    CHECK(boxes == source);
  }
}

// Credit that cancelled and refused transfers used is returned: afterwards transfers of the whole credit can be sent
// before their receives.
void credit_is_never_lost(double loss) {
  Pair pair(11, loss, 50'000);
  auto source = sources(60, 40'000);
  std::vector<std::uint8_t> small(10);
  for (std::uint64_t i = 0; i < 30; ++i) {
    pair.send(i, source[i], i);
    if (i % 2) pair.world.run(static_cast<Time>(i) * 3 * kMillisecond);
    CHECK(pair.a->endpoint->cancel(pair.world.now, 1, i) || find_event(*pair.a, EventType::sent, i));
    if (find_event(*pair.a, EventType::sent, i)) pair.post(500 + i, small, i);  // refused: too small
  }
  for (std::uint64_t i = 30; i < 60; ++i) {
    pair.send(i, source[i], i);
    pair.world.run(40 * kMillisecond);
    pair.post(500 + i, small, i);
    CHECK(pair.received(500 + i));
    CHECK(find_event(*pair.b, EventType::received, 500 + i)->reason == CloseReason::refused);
  }
  pair.world.run(kSecond);
  pair.send(99, source[0], 99);
  CHECK(pair.sent(99));
}

}  // namespace

int main() {
  for (double loss : {0.0, 0.05}) {
    receives_in_the_opposite_order_are_all_served(200, 1000, loss, kWhole);
    receives_in_the_opposite_order_are_all_served(1500, 100, loss, kWhole);
    receives_in_the_opposite_order_are_all_served(20, 60'000, loss, 900'000);
    unclaimed_transfers_block_no_other(loss);
    a_cancelled_receive_makes_its_sender_wait_and_blocks_no_other(loss);
    transfers_of_one_tag_are_paired_in_order(loss);
    credit_is_never_lost(loss);
  }
  return gradwire::test::finish();
}
