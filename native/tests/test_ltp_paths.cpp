// A peer whose address changes during a run: authenticated packets from a new address are followed once the peer has
// answered there, and nobody else can redirect a connection.
#include "tests/check.h"
#include "tests/world.h"

using namespace gradwire;
using namespace gradwire::ltp;
using namespace gradwire::ltp::test;

namespace {

constexpr std::size_t kSize = 4'000'000;

struct Moving {
  explicit Moving(std::uint64_t seed)
      : world(seed), a(&world.add(0)), b(&world.add(1)), source(random_bytes(kSize, seed)), target(kSize) {
    world.link(0, 1, {});
    world.connect(*a, *b);
    CHECK(world.run(kSecond, [&] { return connected(*a, 1) && connected(*b, 0); }));
  }
  void transfer(Host& from, Host& to) {
    to.endpoint->post(world.now, from.rank, {2, target.data(), kSize, 9, 0, 0});
    from.endpoint->send(world.now, to.rank, {1, source.data(), kSize, 9, 4, 0, kWhole, {}, 3});
  }
  // By which time the whole transfer has arrived, from the change on; kNever if it has not.
  Time arrives(const Host& to, Time limit) {
    Time from = world.now;
    bool done = world.run(limit, [&] { return find_event(to, EventType::received, 2) != nullptr; });
    return done && target == source ? world.now - from : kNever;
  }
  static Address elsewhere(bool same_host) {
    Address address = address_of(same_host ? 0 : 40);
    address.port = 6000;
    return address;
  }

  World world;
  Host *a, *b;
  std::vector<std::uint8_t> source, target;
};

void a_sender_whose_address_changes_goes_on() {
  for (bool same_host : {true, false}) {
    Moving pair(1);
    pair.transfer(*pair.a, *pair.b);
    pair.world.run(100 * kMillisecond);
    pair.world.translated[0] = Moving::elsewhere(same_host);
    Time took = pair.arrives(*pair.b, 20 * kSecond);
    std::printf("sender moved (%s host): %.0f ms after it\n", same_host ? "same" : "other",
                static_cast<double>(took) / 1e6);
    CHECK(took < 2 * kSecond);
    CHECK(pair.b->endpoint->counters().moves == 1);
    CHECK(failure_of(*pair.a, 1) == Failure::none && failure_of(*pair.b, 0) == Failure::none);
  }
}

// It has nothing to send but acknowledgements, which stop; its keepalive shows the new address.
void a_receiver_whose_address_changes_goes_on() {
  Moving pair(2);
  pair.transfer(*pair.b, *pair.a);
  pair.world.run(100 * kMillisecond);
  pair.world.translated[0] = Moving::elsewhere(true);
  Time took = pair.arrives(*pair.a, 20 * kSecond);
  std::printf("receiver moved: %.0f ms after it\n", static_cast<double>(took) / 1e6);
  CHECK(took < 4 * kSecond && pair.b->endpoint->counters().moves == 1);
}

// An attacker repeats packets from its own address: old ones, and new ones that it overtakes. It is asked to answer and
// cannot, so that nothing else is ever sent to it.
void nobody_else_can_redirect_a_connection() {
  Moving pair(3);
  pair.world.capture = true;
  pair.transfer(*pair.a, *pair.b);
  Address attacker = Moving::elsewhere(false);
  std::uint64_t to_attacker = 0;
  pair.world.watch = [&](std::uint32_t, const Transmit& run) { to_attacker += run.to == attacker ? run.size : 0; };
  std::uint64_t injected = 0;
  pair.world.change = [&](std::uint32_t from, Datagram& bytes) {
    if (from != 0) return;
    Datagram copy = bytes;
    injected += copy.size();
    pair.world.inject(1, attacker, copy);  // before the original arrives
  };
  CHECK(pair.arrives(*pair.b, 20 * kSecond) < kNever);
  for (auto& captured : pair.world.tape)
    if (captured.to == 1) pair.world.inject(1, attacker, captured.bytes);
  pair.world.run(kSecond);
  const EndpointCounters& counters = pair.b->endpoint->counters();
  CHECK(counters.moves == 0 && counters.challenges_sent > 0);
  CHECK(to_attacker > 0 && to_attacker * 100 < injected);
}

// The address that the initiator was given leads nowhere, whichever side is behind the NAT.
void a_peer_behind_a_nat_is_reached_where_its_packets_come_from() {
  for (std::uint32_t hidden : {0u, 1u}) {
    World world(4);
    Host *a = &world.add(0), *b = &world.add(1);
    world.link(0, 1, {});
    world.translated[hidden] = Moving::elsewhere(false);
    world.connect(*a, *b);
    CHECK(world.run(kSecond, [&] { return connected(*a, 1) && connected(*b, 0); }));
    std::vector<std::uint8_t> source = random_bytes(kSize, 4), target(kSize);
    a->endpoint->post(world.now, 1, {2, target.data(), kSize, 9, 0, 0});
    b->endpoint->send(world.now, 0, {1, source.data(), kSize, 9, 4, 0, kWhole, {}, 3});
    CHECK(world.run(20 * kSecond, [&] { return find_event(*a, EventType::received, 2) != nullptr; }));
    CHECK(target == source && a->endpoint->counters().moves + b->endpoint->counters().moves == 0);
  }
}

// An attacker repeats a KNOCK a thousand times a second from the address of a third party, while the peer is not
// reached.
void repeated_knocks_send_little_to_a_third_party() {
  World world(5);
  Host *a = &world.add(0), *b = &world.add(1);
  world.link(0, 1, {});
  world.capture = true;
  world.drop = [](std::uint32_t, Bytes) { return true; };
  world.connect(*a, *b);
  world.run(100 * kMillisecond);
  const Address third = Moving::elsewhere(false);
  std::uint64_t to_third = 0;
  world.watch = [&](std::uint32_t, const Transmit& run) { to_third += run.to == third ? run.size : 0; };
  Datagram knock;
  for (auto& captured : world.tape)
    if (captured.from == 1 && captured.bytes[0] % 16 == 6) knock = captured.bytes;
  CHECK(!knock.empty());
  for (int i = 0; i < 5000; ++i) {
    world.inject(0, third, knock);
    world.run(kMillisecond);
  }
  std::printf("%llu bytes a second to a third party\n", static_cast<unsigned long long>(to_third / 5));
  CHECK(to_third > 0 && to_third <= 5 * 25 * 1200);
}

}  // namespace

int main() {
  a_peer_behind_a_nat_is_reached_where_its_packets_come_from();
  repeated_knocks_send_little_to_a_third_party();
  a_sender_whose_address_changes_goes_on();
  a_receiver_whose_address_changes_goes_on();
  nobody_else_can_redirect_a_connection();
  return gradwire::test::finish();
}
