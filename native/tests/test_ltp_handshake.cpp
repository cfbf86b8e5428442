// The handshake and attacks on it: wrong secrets, replays, floods, restarts, key updates, smaller path MTUs.
#include "tests/check.h"
#include "tests/world.h"

using namespace gradwire;
using namespace gradwire::ltp;
using namespace gradwire::ltp::test;

namespace {

struct Duo {
  explicit Duo(std::uint64_t seed, const PipeSpec& spec = {}, const Settings& settings = {},
               const char* other_secret = "a job secret")
      : world(seed), a(&world.add(0, settings)), b(&world.add(1, settings, other_secret)) {
    std::tie(there, back) = world.link(0, 1, spec);
    world.connect(*a, *b);
  }
  bool up() {
    return world.run(20 * kSecond, [&] { return connected(*a, 1) && connected(*b, 0); });
  }
  // One reliable transfer a -> b; true when it arrives exactly.
  bool exchange(std::size_t size, std::uint64_t tag) {
    auto source = random_bytes(size, tag);
    std::vector<std::uint8_t> destination(size);
    b->endpoint->post(world.now, 0, {tag, destination.data(), size, tag, 0, 0});
    a->endpoint->send(world.now, 1, {tag, source.data(), size, tag, 1, 0, kWhole, {}, tag});
    bool done = world.run(
        60 * kSecond, [&] { return find_event(*a, EventType::sent, tag) && find_event(*b, EventType::received, tag); });
    return done && source == destination && find_event(*a, EventType::sent, tag)->failure == Failure::none;
  }
  LinkStats stats(const Host& host, std::uint32_t rank) const { return host.endpoint->peer(rank)->connection->stats(); }

  World world;
  Host* a;
  Host* b;
  Pipe* there = nullptr;
  Pipe* back = nullptr;
};

void connects_through_loss_and_corruption() {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    PipeSpec spec;
    spec.loss = 0.3;
    spec.corrupt = 0.2;
    spec.duplicate = 0.2;
    spec.reorder = 0.2;
    Duo duo(seed, spec);
    CHECK(duo.up());
  }
}

// The responder may send data before its ACCEPT has arrived: packets of a connection that the initiator does not know
// yet are not a restart.
void data_that_overtakes_a_lost_accept_does_not_end_the_connection() {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    PipeSpec spec;
    spec.loss = 0.2;
    Duo duo(seed, spec);
    auto source = random_bytes(1000, seed);
    std::vector<std::uint8_t> destination(source.size());
    duo.a->endpoint->post(duo.world.now, 1, {1, destination.data(), destination.size(), 1, 0, 0});
    duo.b->endpoint->send(duo.world.now, 0, {1, source.data(), source.size(), 1, 1, 0, kWhole, {}, seed});
    CHECK(duo.world.run(10 * kSecond, [&] { return find_event(*duo.a, EventType::received, 1) != nullptr; }));
    CHECK(source == destination);
  }
}

void different_secrets_never_connect_and_both_sides_report_why() {
  Duo duo(1, {}, {}, "another secret");
  CHECK(!duo.up());
  duo.world.run(20 * kSecond);
  CHECK(failure_of(*duo.a, 1) == Failure::authentication);
  CHECK(failure_of(*duo.b, 0) == Failure::authentication);
}

void silence_is_no_answer() {
  World world(1);
  Host& a = world.add(0);
  a.endpoint->connect(world.now, 1, address_of(1));
  world.run(31 * kSecond);
  CHECK(failure_of(a, 1) == Failure::no_answer);
}

// Before an address is verified, answers are never larger than requests; without the secret there is no answer.
void answers_are_never_larger_than_requests() {
  Duo duo(3);
  duo.world.capture = true;
  CHECK(duo.up());
  Address victim = address_of(9);
  auto tape = duo.world.tape;
  for (auto& packet : tape) {
    World world(5);
    Host& target = world.add(packet.to);
    target.endpoint->connect(world.now, packet.from, address_of(packet.from));
    world.run(10 * kMillisecond);
    std::uint64_t before = world.sent_bytes[packet.to];
    for (int i = 0; i < 20; ++i) world.inject(packet.to, victim, packet.bytes);
    world.run(kMillisecond);
    CHECK(world.sent_bytes[packet.to] - before <= 20 * packet.bytes.size());
    // The largest answer, ACCEPT, needs a cookie bound to the address: a repeated HELLO only gets a RETRY.
    if (peek_kind(packet.bytes) == Kind::hello) CHECK(world.sent_bytes[packet.to] - before < 20 * 60);
    CHECK(!connected(target, packet.from));
  }
  World world(6);
  Host& target = world.add(1, {}, "another secret");
  target.endpoint->connect(world.now, 0, address_of(0));
  world.run(kMillisecond);
  std::uint64_t before = world.sent_bytes[1];
  for (auto& packet : tape)
    if (packet.to == 1 && peek_kind(packet.bytes) != Kind::sealed) world.inject(1, victim, packet.bytes);
  world.run(kMillisecond);
  CHECK(world.sent_bytes[1] == before);
  CHECK(target.endpoint->counters().authentication_failed > 0);
}

void replayed_packets_are_counted_and_change_nothing() {
  Duo duo(4);
  CHECK(duo.up());
  duo.world.capture = true;
  CHECK(duo.exchange(200'000, 11));
  duo.world.run(500 * kMillisecond);  // until no captured packet is still in flight
  auto tape = duo.world.tape;
  LinkStats before = duo.stats(*duo.b, 0);
  // MTU probes that the path dropped were never received: they would not be replays.
  for (auto& packet : tape)
    if (packet.bytes.size() <= 1472) duo.world.inject(packet.to, address_of(packet.from), packet.bytes);
  LinkStats after = duo.stats(*duo.b, 0);
  CHECK(after.counters.packets_received == before.counters.packets_received);
  CHECK(after.counters.replayed >= before.counters.replayed + 100);
  CHECK(duo.exchange(200'000, 12));
}

void invalid_and_altered_packets_change_nothing() {
  Duo duo(5);
  CHECK(duo.up());
  duo.world.capture = true;
  CHECK(duo.exchange(50'000, 1));
  auto tape = duo.world.tape;
  duo.world.capture = false;
  Random random(9);
  LinkStats before = duo.stats(*duo.b, 0);
  for (int i = 0; i < 20'000; ++i) {
    Datagram bytes = tape[random.next() % tape.size()].bytes;
    switch (random.next() % 4) {
      case 0: bytes[random.next() % bytes.size()] ^= static_cast<std::uint8_t>(1 + random.next() % 255); break;
      case 1: bytes.resize(random.next() % bytes.size()); break;
      case 2: bytes.resize(bytes.size() + 1 + random.next() % 100, 7); break;
      default:
        for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
    }
    duo.world.inject(1, address_of(0), bytes);
  }
  LinkStats after = duo.stats(*duo.b, 0);
  CHECK(after.counters.packets_received == before.counters.packets_received);
  CHECK(after.counters.authentication_failed > before.counters.authentication_failed);
  CHECK(failure_of(*duo.b, 0) == Failure::none);
  CHECK(duo.exchange(50'000, 2));
}

void key_updates_lose_no_data() {
  Settings settings;
  settings.key_update_after = 200;
  PipeSpec spec;
  spec.loss = 0.02;
  spec.reorder = 0.1;
  Duo duo(6, spec, settings);
  CHECK(duo.up());
  CHECK(duo.exchange(3'000'000, 1));
  LinkStats sender = duo.stats(*duo.a, 1);
  CHECK(sender.counters.key_updates >= 5);
  CHECK(duo.stats(*duo.b, 0).counters.authentication_failed < sender.counters.packets_sent / 100);
}

void authenticate_only_carries_plain_bytes_and_still_rejects_changes() {
  for (bool encrypt : {false, true}) {
    Settings settings;
    settings.encrypt = encrypt;
    PipeSpec spec;
    spec.corrupt = 0.05;
    Duo duo(7, spec, settings);
    CHECK(duo.up());
    duo.world.capture = true;
    CHECK(duo.exchange(100'000, 3));
    auto source = random_bytes(100'000, 3);
    bool seen = false;
    for (auto& packet : duo.world.tape)
      if (packet.to == 1 && packet.bytes.size() > 1000)
        seen |= std::search(source.begin(), source.end(), packet.bytes.begin() + 100, packet.bytes.begin() + 400) !=
                source.end();
    CHECK(seen == !encrypt);
  }
}

void the_path_mtu_is_found() {
  for (std::size_t mtu : {1200u, 1300u, 1452u, 1472u, 4100u, 9000u}) {
    PipeSpec spec;
    spec.mtu = mtu;
    Duo duo(8, spec);
    CHECK(duo.up());
    CHECK(duo.exchange(300'000, 1));
    duo.world.run(3 * kSecond);
    std::size_t found = duo.stats(*duo.a, 1).datagram;
    CHECK(found <= mtu);
    CHECK(found + 120 > std::min<std::size_t>(mtu, 8972));
  }
}

void a_smaller_path_mtu_does_not_stop_a_transfer() {
  PipeSpec spec;
  Duo duo(9, spec);
  CHECK(duo.up());
  CHECK(duo.exchange(300'000, 1));
  CHECK(duo.stats(*duo.a, 1).datagram == 1472);
  std::size_t size = 2'000'000;
  auto source = random_bytes(size, 2);
  std::vector<std::uint8_t> destination(size);
  duo.b->endpoint->post(duo.world.now, 0, {2, destination.data(), size, 2, 0, 0});
  duo.a->endpoint->send(duo.world.now, 1, {2, source.data(), size, 2, 4, 0, kWhole, {}, 2});
  duo.world.run(60 * kMillisecond);
  CHECK(!find_event(*duo.b, EventType::received, 2));
  duo.there->spec.mtu = 1250;
  CHECK(duo.world.run(30 * kSecond, [&] { return find_event(*duo.b, EventType::received, 2); }));
  CHECK(source == destination);
  CHECK(duo.stats(*duo.a, 1).counters.mtu_fallbacks >= 1);
  CHECK(duo.stats(*duo.a, 1).datagram <= 1250);
}

void a_dead_peer_is_detected_in_the_stated_time() {
  Duo duo(10);
  CHECK(duo.up());
  std::vector<std::uint8_t> bytes(1000);
  duo.b->endpoint->post(duo.world.now, 0, {5, bytes.data(), bytes.size(), 1, 0, 0});
  duo.world.run(100 * kMillisecond);
  duo.a->paused = true;
  Time start = duo.world.now;
  CHECK(duo.world.run(30 * kSecond, [&] { return failure_of(*duo.b, 0) != Failure::none; }));
  CHECK(failure_of(*duo.b, 0) == Failure::vanished);
  CHECK(duo.world.now - start <= 16 * kSecond);
  CHECK(find_event(*duo.b, EventType::received, 5)->failure == Failure::vanished);
}

void a_paused_peer_keeps_its_connection() {
  Duo duo(11);
  CHECK(duo.up());
  std::vector<std::uint8_t> source = random_bytes(3'000'000, 1), destination(source.size());
  duo.b->endpoint->post(duo.world.now, 0, {1, destination.data(), destination.size(), 1, 0, 0});
  duo.a->endpoint->send(duo.world.now, 1, {1, source.data(), source.size(), 1, 4, 0, kWhole, {}, 1});
  duo.world.run(50 * kMillisecond);
  duo.b->paused = true;
  duo.world.run(5 * kSecond);
  duo.b->paused = false;
  Time resumed = duo.world.now;
  CHECK(duo.world.run(20 * kSecond, [&] { return find_event(*duo.b, EventType::received, 1); }));
  CHECK(source == destination);
  CHECK(duo.world.now - resumed < 3 * kSecond);
}

void a_restarted_peer_is_distinguished_from_a_silent_one() {
  for (std::uint32_t who : {0u, 1u}) {
    Duo duo(12 + who);
    CHECK(duo.up());
    Host& dead = who ? *duo.b : *duo.a;
    Host& other = who ? *duo.a : *duo.b;
    duo.world.restart(dead, {}, "a job secret", 2);
    dead.endpoint->connect(duo.world.now, other.rank, other.address);
    CHECK(duo.world.run(10 * kSecond, [&] { return failure_of(other, dead.rank) != Failure::none; }));
    CHECK(failure_of(other, dead.rank) == Failure::restarted);
    // And a new connection can be made.
    other.events.clear();
    other.endpoint->connect(duo.world.now, dead.rank, dead.address);
    CHECK(duo.world.run(10 * kSecond, [&] { return connected(other, dead.rank); }));
  }
}

// A first round trip of seconds would make the first window leave very slowly and timers wait for as long.
void first_round_trips_are_those_of_the_path() {
  auto check = [](const Duo& duo) {
    for (auto [host, other] : {std::pair(duo.a, 1u), std::pair(duo.b, 0u)})
      CHECK(duo.stats(*host, other).srtt < 50 * kMillisecond);
  };
  Duo duo(15);
  CHECK(duo.up());
  check(duo);
  CHECK(duo.stats(*duo.a, 1).srtt >= 20 * kMillisecond);
  // Connected again, long after the first time.
  duo.world.run(5 * kSecond);
  duo.b->endpoint->shut();
  duo.world.run(kSecond);
  for (Host* host : {duo.a, duo.b}) host->events.clear();
  duo.world.connect(*duo.a, *duo.b);
  CHECK(duo.up());
  check(duo);
  // Early: it repeats its HELLO to one that is not ready.
  Duo late(16);
  late.world.restart(*late.b, {}, "a job secret", 1);
  late.world.run(5 * kSecond);
  late.b->endpoint->connect(late.world.now, 0, late.a->address);
  CHECK(late.up());
  check(late);
  CHECK(late.exchange(100'000, 1));
}

void connecting_again_to_a_live_peer_is_reported() {
  Duo duo(17);
  CHECK(duo.up());
  for (Host* host : {duo.a, duo.b}) host->events.clear();
  duo.world.connect(*duo.a, *duo.b);
  CHECK(duo.world.run(kMillisecond, [&] { return connected(*duo.a, 1) && connected(*duo.b, 0); }));
}

// The initiator dies between ACCEPT and its first packet: its successor gets the pending requests.
void an_unconfirmed_connection_passes_its_requests_on() {
  Duo duo(18);
  auto source = random_bytes(5000, 1);
  std::vector<std::uint8_t> there(source.size()), back(source.size());
  duo.b->endpoint->post(duo.world.now, 0, {1, there.data(), there.size(), 1, 0, 0});
  duo.b->endpoint->send(duo.world.now, 0, {2, source.data(), source.size(), 2, 1, 0, kWhole, {}, 2});
  CHECK(duo.world.run(kSecond, [&] { return duo.b->endpoint->peer(0)->connection != nullptr; }));
  CHECK(!duo.b->endpoint->peer(0)->connection->confirmed());
  duo.world.restart(*duo.a, {}, "a job secret", 2);
  duo.a->endpoint->connect(duo.world.now, 1, duo.b->address);
  duo.a->endpoint->send(duo.world.now, 1, {1, source.data(), source.size(), 1, 1, 0, kWhole, {}, 1});
  duo.a->endpoint->post(duo.world.now, 1, {2, back.data(), back.size(), 2, 0, 0});
  CHECK(duo.world.run(5 * kSecond, [&] {
    return find_event(*duo.b, EventType::received, 1) && find_event(*duo.b, EventType::sent, 2) &&
           find_event(*duo.a, EventType::received, 2);
  }));
  CHECK(there == source && back == source);
}

// The interface may refuse a datagram larger than the path is known to carry, and with it the whole run.
void a_probe_is_sent_alone() {
  Duo duo(19);
  int probes = 0;
  duo.world.watch = [&](std::uint32_t, const Transmit& run) {
    if (run.segment <= 1472) return;
    ++probes;
    CHECK(run.size == run.segment);
  };
  CHECK(duo.up());
  CHECK(duo.exchange(3'000'000, 1));
  CHECK(probes > 3);
}

// One captured HELLO, repeated without end: answers stay few, and a connection's data does not wait behind them.
void a_repeated_hello_costs_little_and_delays_nothing() {
  Duo duo(20);
  duo.world.capture = true;
  CHECK(duo.up());
  Datagram hello;
  for (auto& packet : duo.world.tape)
    if (packet.to == 1 && peek_kind(packet.bytes) == Kind::hello && hello.empty()) hello = packet.bytes;
  CHECK(!hello.empty());
  duo.world.capture = false;
  duo.world.run(kSecond);
  auto source = random_bytes(20'000, 1);
  std::vector<std::uint8_t> box(source.size());
  duo.a->endpoint->post(duo.world.now, 1, {5, box.data(), box.size(), 5, 0, 0});
  duo.world.run(100 * kMillisecond);
  for (int i = 0; i < 100'000; ++i) duo.world.inject(1, address_of(9), hello);
  duo.b->endpoint->send(duo.world.now, 0, {5, source.data(), source.size(), 5, 1, 0, kWhole, {}, 5});
  int runs = 0, answers = 0, before_data = 0;
  duo.world.watch = [&](std::uint32_t from, const Transmit& run) {
    if (from != 1) return;
    bool is_answer = run.to == address_of(9);
    answers += is_answer;
    if (++runs == 1) before_data = is_answer;
  };
  CHECK(duo.world.run(kSecond, [&] { return find_event(*duo.b, EventType::sent, 5); }));
  duo.world.run(kSecond);
  CHECK(before_data == 0);
  CHECK(answers > 0 && answers <= 1000);
}

// RETRY has 1/26 of the size of the HELLO that answers it: an attacker that repeats a captured one must not make us
// send much.
void a_repeated_retry_is_not_answered_each_time() {
  Duo duo(21);
  duo.world.capture = true;
  CHECK(duo.world.run(kSecond, [&] {
    return std::any_of(duo.world.tape.begin(), duo.world.tape.end(),
                       [](auto& p) { return peek_kind(p.bytes) == Kind::retry; });
  }));
  Datagram retry;
  for (auto& packet : duo.world.tape)
    if (peek_kind(packet.bytes) == Kind::retry) retry = packet.bytes;
  duo.b->paused = true;
  std::uint64_t before = duo.world.sent_bytes[0];
  for (int i = 0; i < 1000; ++i) {
    duo.world.inject(0, address_of(1), retry);
    duo.world.run(kMillisecond);
  }
  CHECK(duo.world.sent_bytes[0] - before <= 25 * 1200);
}

void a_shut_is_received() {
  Duo duo(14);
  CHECK(duo.up());
  duo.a->endpoint->shut();
  duo.world.run(kSecond);
  CHECK(failure_of(*duo.b, 0) == Failure::closed);
}

}  // namespace

int main() {
  connects_through_loss_and_corruption();
  data_that_overtakes_a_lost_accept_does_not_end_the_connection();
  different_secrets_never_connect_and_both_sides_report_why();
  silence_is_no_answer();
  answers_are_never_larger_than_requests();
  replayed_packets_are_counted_and_change_nothing();
  invalid_and_altered_packets_change_nothing();
  key_updates_lose_no_data();
  authenticate_only_carries_plain_bytes_and_still_rejects_changes();
  the_path_mtu_is_found();
  a_smaller_path_mtu_does_not_stop_a_transfer();
  a_dead_peer_is_detected_in_the_stated_time();
  a_paused_peer_keeps_its_connection();
  a_restarted_peer_is_distinguished_from_a_silent_one();
  first_round_trips_are_those_of_the_path();
  connecting_again_to_a_live_peer_is_reported();
  an_unconfirmed_connection_passes_its_requests_on();
  a_probe_is_sent_alone();
  a_repeated_hello_costs_little_and_delays_nothing();
  a_repeated_retry_is_not_answered_each_time();
  a_shut_is_received();
  return gradwire::test::finish();
}
