// Attackers on LTP's keys: a recorder that learns the job secret later, one that changes public keys, sends weak ones
// or replays old ones; and peers of other versions, with extensions, or at a key's limit of use.
#include <string>
#include <string_view>

#include "tests/check.h"
#include "tests/world.h"

using namespace gradwire;
using namespace gradwire::ltp;
using namespace gradwire::ltp::test;

namespace {

constexpr char kSecret[] = "a job secret";

Bytes secret_bytes() { return {reinterpret_cast<const std::uint8_t*>(kSecret), sizeof kSecret - 1}; }

// X25519 ignores the lowest bits of the first byte.
HeldSecret seed_of(std::uint8_t number) { return HeldSecret(Secret{0, number}); }

// Writes the tag of a handshake packet that was changed, as whoever knows the job secret can.
void retag(Datagram& datagram, Bytes context = {}) {
  Datagram covered(datagram.begin(), datagram.end() - kTagSize);
  covered.insert(covered.end(), context.begin(), context.end());
  Secret full = hmac_sha256(handshake_key(secret_bytes()), covered);
  std::memcpy(datagram.data() + datagram.size() - kTagSize, full.data(), kTagSize);
}

struct Duo {
  explicit Duo(std::uint64_t seed, const Settings& first = {}, const Settings& second = {})
      : world(seed), a(&world.add(0, first)), b(&world.add(1, second)) {
    world.link(0, 1, {});
    world.connect(*a, *b);
    world.capture = true;
  }
  bool up() {
    return world.run(20 * kSecond, [&] { return connected(*a, 1) && connected(*b, 0); });
  }
  // Runs until a packet of that kind was sent, and returns the first.
  Datagram first(Kind kind) {
    Datagram found;
    world.run(kSecond, [&] {
      for (auto& packet : world.tape)
        if (peek_kind(packet.bytes) == kind && found.empty()) found = packet.bytes;
      return !found.empty();
    });
    CHECK(!found.empty());
    return found;
  }
  World world;
  Host* a;
  Host* b;
};

Secret from_hex(std::string_view text) {
  Secret out;
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<std::uint8_t>(std::stoul(std::string(text.substr(2 * i, 2)), nullptr, 16));
  return out;
}

// RFC 7748, section 6.1.
void x25519_is_that_of_the_rfc() {
  EphemeralKey alice(from_hex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"));
  EphemeralKey bob(from_hex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"));
  CHECK(alice.public_key() == from_hex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"));
  Secret shared = from_hex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
  CHECK(*alice.agree(bob.public_key()) == shared && *bob.agree(alice.public_key()) == shared);
}

void both_sides_agree_and_nobody_else_does() {
  EphemeralKey a(seed_of(1)), b(seed_of(2)), c(seed_of(3));
  CHECK(*a.agree(b.public_key()) == *b.agree(a.public_key()));
  CHECK(*a.agree(b.public_key()) != *a.agree(c.public_key()));
  CHECK(*a.agree(b.public_key()) != *c.agree(b.public_key()));
}

// The points of order 1, 2, 4 and 8 on the curve and its twist (RFC 7748's "small order"), canonical and not.
std::vector<PublicKey> weak_keys() {
  PublicKey zero{}, one{}, minus_one, prime, past;
  one[0] = 1;
  minus_one.fill(0xff);
  minus_one[0] = 0xec;
  minus_one[31] = 0x7f;
  prime = past = minus_one;
  prime[0] = 0xed;
  past[0] = 0xee;
  PublicKey eight = {0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4, 0x6a,
                     0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49, 0xb8, 0x00};
  PublicKey twist = {0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83, 0xef, 0x5b,
                     0x04, 0x44, 0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0, 0x9f, 0x11, 0x57};
  return {zero, one, minus_one, prime, past, eight, twist};
}

void weak_public_keys_give_no_secret() {
  EphemeralKey own(seed_of(7));
  for (const PublicKey& weak : weak_keys()) CHECK(!own.agree(weak));
}

// Everything that was sent and the job secret are the same; other ephemeral keys give other traffic keys. So what a
// recorder holds does not determine them: it would have to find a private key.
void the_job_secret_and_the_recording_do_not_determine_the_keys() {
  Handshake handshake(secret_bytes(), seed_of(9));
  Datagram accept(kBaseDatagram / 4, 5);
  HelloCore hello{};
  EphemeralKey a(seed_of(1)), b(seed_of(2)), c(seed_of(3));
  auto keys = handshake.keys(a, b.public_key(), hello, accept);
  auto same = handshake.keys(b, a.public_key(), hello, accept);
  auto other = handshake.keys(a, c.public_key(), hello, accept);
  CHECK(keys->initiator == same->initiator && keys->responder == same->responder);
  CHECK(keys->initiator != other->initiator && keys->responder != other->responder);
  CHECK(keys->initiator != keys->responder);
  // Every byte that was sent counts, too, and so does the secret.
  HelloCore changed = hello;
  changed[600] ^= 1;
  CHECK(handshake.keys(a, b.public_key(), changed, accept)->initiator != keys->initiator);
  Datagram altered = accept;
  altered[altered.size() - kTagSize - 1] ^= 1;
  CHECK(handshake.keys(a, b.public_key(), hello, altered)->initiator != keys->initiator);
  Handshake stranger(secret_bytes().first(5), seed_of(9));
  CHECK(stranger.keys(a, b.public_key(), hello, accept)->initiator != keys->initiator);
}

// The recorder of a real connection derives what the earlier protocol derived from the job secret alone, and with each
// public key in place of the exchanged secret: no recorded packet opens.
void a_recorder_that_learns_the_secret_opens_nothing() {
  Duo duo(1);
  Datagram hello_bytes = duo.first(Kind::hello), accept = duo.first(Kind::accept);
  Hello hello;
  Accept answer;
  CHECK(parse(hello_bytes, hello) && parse(accept, answer));
  CHECK(duo.up());
  Datagram transcript;
  HelloCore hello_core = core(hello_bytes);
  transcript.insert(transcript.end(), hello_core.begin(), hello_core.end());
  transcript.insert(transcript.end(), accept.begin(), accept.end() - kTagSize);
  int sealed = 0;
  for (auto& packet : duo.world.tape) {
    SealedHeader header;
    if (!parse(packet.bytes, header)) continue;
    ++sealed;
    for (const Secret& guess : {Secret{}, Secret(hello.key), Secret(answer.key), Secret(job_key(secret_bytes()))}) {
      TrafficSecrets secrets = traffic_secrets(job_key(secret_bytes()), guess, transcript);
      for (const Secret& secret : {Secret(secrets.initiator), Secret(secrets.responder)}) {
        Datagram copy = packet.bytes;
        OpeningKeys keys(secret);
        CHECK(!keys.open(header, Bytes(packet.bytes).first(kSealedHeader), MutableBytes(copy).subspan(kSealedHeader),
                         true));
      }
    }
  }
  CHECK(sealed > 2);
}

// Each connection has its own keys, also between the same two processes.
void every_connection_has_its_own_public_keys() {
  Duo duo(2);
  CHECK(duo.up());
  duo.b->endpoint->shut();
  duo.world.run(kSecond);
  for (Host* host : {duo.a, duo.b}) host->events.clear();
  duo.world.connect(*duo.a, *duo.b);
  CHECK(duo.up());
  std::vector<PublicKey> hellos, accepts;
  for (auto& packet : duo.world.tape) {
    Hello hello;
    Accept accept;
    if (peek_kind(packet.bytes) == Kind::hello && parse(packet.bytes, hello)) hellos.push_back(hello.key);
    if (peek_kind(packet.bytes) == Kind::accept && parse(packet.bytes, accept)) accepts.push_back(accept.key);
  }
  CHECK(hellos.front() != hellos.back() && accepts.front() != accepts.back());
  CHECK(hellos.front() != PublicKey{} && accepts.front() != PublicKey{});
}

// Without the secret, a changed key fails the packet's tag. With it, an attacker between the two must answer for both
// sides: a HELLO whose key alone was exchanged leads to an ACCEPT that the initiator refuses.
void a_changed_public_key_gives_no_session() {
  for (bool knows_secret : {false, true}) {
    Duo duo(3);
    EphemeralKey attacker(seed_of(66));
    int changed = 0;
    duo.world.change = [&](std::uint32_t, Datagram& datagram) {
      if (peek_kind(datagram) != Kind::hello) return;
      std::copy(attacker.public_key().begin(), attacker.public_key().end(), datagram.begin() + 60);
      if (knows_secret) retag(datagram);
      ++changed;
    };
    CHECK(!duo.up());
    CHECK(changed > 1 && !connected(*duo.a, 1) && !connected(*duo.b, 0));
  }
  Duo duo(4);
  EphemeralKey attacker(seed_of(66));
  int changed = 0;
  duo.world.change = [&](std::uint32_t, Datagram& datagram) {
    if (peek_kind(datagram) != Kind::accept) return;
    std::copy(attacker.public_key().begin(), attacker.public_key().end(), datagram.begin() + 60);
    ++changed;
  };
  CHECK(!duo.up());
  CHECK(changed >= 1 && !connected(*duo.a, 1));
}

void weak_public_keys_are_refused_on_both_sides() {
  for (const PublicKey& weak : weak_keys())
    for (Kind kind : {Kind::hello, Kind::accept}) {
      Duo duo(5);
      HelloCore sent{};
      duo.world.change = [&](std::uint32_t, Datagram& datagram) {
        if (peek_kind(datagram) == Kind::hello) sent = core(datagram);
        if (peek_kind(datagram) != kind) return;
        std::copy(weak.begin(), weak.end(), datagram.begin() + 60);
        retag(datagram, kind == Kind::accept ? Bytes(sent) : Bytes());
      };
      duo.world.run(2 * kSecond);
      CHECK(!connected(*duo.a, 1) && !connected(*duo.b, 0));
      CHECK(failure_of(kind == Kind::hello ? *duo.b : *duo.a, kind == Kind::hello ? 0 : 1) == Failure::protocol);
    }
}

// The recorded HELLO has a valid cookie and comes from the right address, to a responder that waits for this peer
// again.
void a_replayed_hello_gives_no_session() {
  Duo duo(6);
  CHECK(duo.up());
  Datagram recorded;
  for (auto& packet : duo.world.tape)
    if (peek_kind(packet.bytes) == Kind::hello) recorded = packet.bytes;
  duo.b->endpoint->shut();
  duo.world.run(kSecond);
  duo.b->events.clear();
  duo.b->endpoint->connect(duo.world.now, 0, duo.a->address);
  duo.world.inject(1, duo.a->address, recorded);
  CHECK(duo.b->endpoint->peer(0)->connection != nullptr);  // accepted as a HELLO, but by a new key of the responder
  for (auto& packet : std::vector(duo.world.tape))
    if (packet.to == 1 && peek_kind(packet.bytes) == Kind::sealed) duo.world.inject(1, duo.a->address, packet.bytes);
  duo.world.run(2 * kSecond);
  CHECK(!connected(*duo.b, 0));
  // The true peer still connects.
  duo.a->events.clear();
  duo.a->endpoint->connect(duo.world.now, 1, duo.b->address);
  CHECK(duo.up());
}

// An exchange costs far more than a tag. Two recorded HELLOs with valid cookies, of two processes that never confirmed,
// replace each other's connection each time: the dearest flood without the secret.
void a_flood_of_replayed_hellos_costs_a_bounded_number_of_exchanges() {
  Duo duo(7);
  std::vector<Datagram> recorded;
  for (std::uint64_t epoch : {1u, 2u}) {
    if (epoch == 2) duo.world.restart(*duo.a, {}, kSecret, epoch);
    if (epoch == 2) duo.a->endpoint->connect(duo.world.now, 1, duo.b->address);
    CHECK(duo.world.run(kSecond, [&] {
      auto& made = duo.b->endpoint->peer(0)->connection;
      return made && made->start().epoch == epoch;
    }));
    for (auto& packet : duo.world.tape)
      if (packet.to == 1 && peek_kind(packet.bytes) == Kind::hello)
        recorded.resize(epoch), recorded.back() = packet.bytes;
  }
  int exchanges = 0;
  std::uint32_t last = 0;
  for (std::size_t i = 0; i < 5000; ++i) {
    duo.world.inject(1, duo.a->address, recorded[i % 2]);
    std::uint32_t made = duo.b->endpoint->peer(0)->connection->start().local;
    exchanges += made != last;
    last = made;
  }
  CHECK(exchanges > 100 && exchanges <= 1001);
  // The true peer may have lost its connection to the flood, as to any attacker on the path; it connects again.
  duo.world.run(kSecond);
  for (Host* host : {duo.a, duo.b}) host->events.clear();
  duo.world.connect(*duo.a, *duo.b);
  CHECK(duo.up());
}

// An initiator of a later version, played here, sends extensions: they are skipped, and both sides' keys cover them.
void unknown_extensions_are_skipped_and_authenticated() {
  World world(8);
  Host& b = world.add(1);
  b.endpoint->connect(world.now, 0, address_of(0));
  world.capture = true;
  auto answered = [&](Kind kind) {
    world.run(0);
    for (auto& packet : world.tape)
      if (peek_kind(packet.bytes) == kind) return packet.bytes;
    return Datagram();
  };
  Handshake own(secret_bytes(), seed_of(9));
  EphemeralKey key(seed_of(8));
  Hello hello;
  hello.connection = 77;
  hello.peer_rank = 1;
  hello.nonce = own.fresh_nonce();
  hello.largest_datagram = 1472;
  hello.key = key.public_key();
  const std::uint8_t extensions[] = {0x7f, 0x01, 0, 3, 'n', 'e', 'w', 0x7f, 0x02, 0, 0};
  auto extended = [&] {
    Datagram datagram = own.sealed(hello);
    std::copy(std::begin(extensions), std::end(extensions), datagram.begin() + 116);
    retag(datagram);
    return datagram;
  };
  world.inject(1, address_of(0), extended());
  Retry retry;
  CHECK(parse(answered(Kind::retry), retry));
  hello.cookie = retry.cookie;
  Datagram sent = extended();
  world.inject(1, address_of(0), sent);
  Accept accept;
  Datagram answer = answered(Kind::accept);
  CHECK(parse(answer, accept));
  CHECK(own.authentic(answer, core(sent)) && !own.authentic(answer, core(hello)));
  SealingKeys keys(own.keys(key, accept.key, core(sent), answer)->initiator);
  Datagram ping(kSealedHeader + 1 + kTagSize);
  Writer writer(MutableBytes(ping).first(kSealedHeader));
  write(writer, SealedHeader{0, accept.own_connection, 0});
  const std::uint8_t frame[] = {1};
  keys.seal(0, Bytes(ping).first(kSealedHeader), frame, {}, ping.data() + kSealedHeader, true);
  world.inject(1, address_of(0), ping);
  world.run(0);
  CHECK(connected(b, 0));
}

void extensions_that_do_not_fit_are_malformed() {
  Handshake own(secret_bytes(), seed_of(9));
  Hello hello;
  Accept accept;
  hello.largest_datagram = accept.largest_datagram = 1472;
  Datagram datagram = own.sealed(hello);
  datagram[116] = 1;
  datagram[118] = 0xff;
  CHECK(!parse(datagram, hello));
  datagram[118] = 0x04;
  CHECK(parse(datagram, hello));
  Datagram longer = own.sealed(accept);
  longer.insert(longer.end() - kTagSize, {0, 9, 0, 2, 'o', 'k'});
  CHECK(parse(longer, accept));
  longer[longer.size() - kTagSize - 3] = 3;
  CHECK(!parse(longer, accept));
}

void a_peer_of_another_version_is_named_on_both_sides() {
  Duo duo(9);
  Datagram old = duo.first(Kind::hello);
  old[0] = 2 << 4 | static_cast<std::uint8_t>(Kind::hello);
  retag(old);
  // 1. A responder answers an authentic HELLO of any version with its own versions, and remembers the mismatch.
  World world(10);
  Host& b = world.add(1);
  b.endpoint->connect(world.now, 0, address_of(0));
  world.capture = true;
  world.inject(1, address_of(0), old);
  Datagram forged = old;
  forged.back() ^= 1;
  world.inject(1, address_of(0), forged);
  world.run(31 * kSecond);
  int answers = 0;
  Datagram answer;
  for (auto& packet : world.tape)
    if (peek_kind(packet.bytes) == Kind::versions) ++answers, answer = packet.bytes;
  CHECK(answers == 1);
  CHECK(b.endpoint->counters().wrong_version == 2);
  CHECK(failure_of(b, 0) == Failure::wrong_version);
  Versions versions;
  CHECK(parse(answer, versions) && versions.lowest == kVersion && versions.highest == kVersion);
  // 2. An initiator that gets such an answer to its HELLO fails at once; a forged answer changes nothing.
  Duo other(11);
  Datagram hello_bytes = other.first(Kind::hello);
  Hello hello;
  CHECK(parse(hello_bytes, hello));
  Handshake later(secret_bytes(), seed_of(9));
  Datagram named = later.sealed(Versions{hello.connection, kVersion + 1, kVersion + 2}, hello.nonce);
  named[0] = 5 << 4 | static_cast<std::uint8_t>(Kind::versions);
  retag(named, hello.nonce);
  Datagram fake = named;
  fake.back() ^= 1;
  other.world.inject(0, other.b->address, fake);
  other.world.run(0);
  CHECK(failure_of(*other.a, 1) == Failure::none);
  other.world.inject(0, other.b->address, named);
  other.world.run(0);
  CHECK(failure_of(*other.a, 1) == Failure::wrong_version);
}

// A sender whose key cannot be changed stops at the limit, and a receiver does not accept more than that under one key.
void a_key_is_never_used_beyond_its_limit() {
  for (bool sender : {false, true}) {
    Settings endless, strict;
    endless.key_update_after = endless.key_limit = UINT64_MAX;
    strict.key_limit = 300;
    strict.key_update_after = UINT64_MAX;
    Duo duo(12, sender ? strict : endless, sender ? endless : strict);
    CHECK(duo.up());
    duo.world.capture = false;
    auto source = random_bytes(2'000'000, 1);
    std::vector<std::uint8_t> box(source.size());
    duo.b->endpoint->post(duo.world.now, 0, {1, box.data(), box.size(), 1, 0, 0});
    duo.a->endpoint->send(duo.world.now, 1, {1, source.data(), source.size(), 1, 1, 0, kWhole, {}, 1});
    Host& first = sender ? *duo.a : *duo.b;
    CHECK(duo.world.run(10 * kSecond, [&] { return failure_of(first, sender ? 1 : 0) != Failure::none; }));
    CHECK(failure_of(first, sender ? 1 : 0) == Failure::key_limit);
  }
}

}  // namespace

int main() {
  x25519_is_that_of_the_rfc();
  both_sides_agree_and_nobody_else_does();
  weak_public_keys_give_no_secret();
  the_job_secret_and_the_recording_do_not_determine_the_keys();
  a_recorder_that_learns_the_secret_opens_nothing();
  every_connection_has_its_own_public_keys();
  a_changed_public_key_gives_no_session();
  weak_public_keys_are_refused_on_both_sides();
  a_replayed_hello_gives_no_session();
  a_flood_of_replayed_hellos_costs_a_bounded_number_of_exchanges();
  unknown_extensions_are_skipped_and_authenticated();
  extensions_that_do_not_fit_are_malformed();
  a_peer_of_another_version_is_named_on_both_sides();
  a_key_is_never_used_beyond_its_limit();
  return gradwire::test::finish();
}
