// Attackers on a stream's keys: a recorder that learns the job secret later, one that changes or replays public keys or
// sends weak ones; and peers of other versions or with extensions.
#include "stream/loop.h"
#include "tests/check.h"
#include "tests/stream_caller.h"

using namespace gradwire;
using namespace gradwire::stream;
using test::Caller;
using test::dial;
using test::receive_greeting_bytes;
using test::send_greeting_bytes;

namespace {

const std::vector<std::uint8_t> kSecret(32, 7);

// X25519 ignores the lowest bits of the first byte.
EphemeralKey key_of(std::uint8_t number) { return EphemeralKey(HeldSecret(Secret{0, number})); }

LoopConfig config(std::uint32_t rank) {
  LoopConfig config;
  config.rank = rank;
  config.epoch = 100 + rank;
  config.secret = kSecret;
  config.connect_timeout = kSecond / 2;
  return config;
}

Time soon() { return monotonic_now() + 60 * kSecond; }

Failure outcome(Loop& loop, std::uint32_t rank) {
  Failure failure = Failure::none;
  loop.wait_connected(rank, soon(), failure);
  return failure;
}

void the_job_secret_and_the_recording_do_not_determine_the_keys() {
  Greeter greeter(kSecret), stranger(Bytes(kSecret).first(5));
  EphemeralKey a = key_of(1), b = key_of(2), c = key_of(3);
  GreetingBytes hello{}, accept{};
  auto keys = greeter.secrets(a, b.public_key(), hello, accept);
  CHECK(keys->initiator == greeter.secrets(b, a.public_key(), hello, accept)->initiator);
  CHECK(keys->initiator != keys->responder);
  CHECK(keys->initiator != greeter.secrets(a, c.public_key(), hello, accept)->initiator);
  CHECK(keys->initiator != stranger.secrets(a, b.public_key(), hello, accept)->initiator);
  for (GreetingBytes* message : {&hello, &accept})
    for (std::size_t at : {std::size_t{0}, std::size_t{100}, kGreeting - 1}) {
      (*message)[at] ^= 1;
      CHECK(greeter.secrets(a, b.public_key(), hello, accept)->initiator != keys->initiator);
      (*message)[at] ^= 1;
    }
}

// A Caller uses the same private key each time; its traffic keys differ, because the responder's do not repeat.
void every_connection_has_its_own_public_key() {
  Loop b(config(1));
  b.connect(0, "127.0.0.1", 1);
  Caller first(b.port()), second(b.port());
  auto one = Greeter::parse(first.accept), two = Greeter::parse(second.accept);
  CHECK(one && two && one->key != two->key && one->key != PublicKey{});
}

// As one who knows the secret can: with a valid tag. What it leads to is no session without the private key.
void a_changed_public_key_fails_the_tag_or_the_first_frame() {
  Loop b(config(1));
  b.connect(0, "127.0.0.1", 1);
  Greeter greeter(kSecret);
  GreetingBytes challenge{}, answer{};
  int fd = dial(b.port());
  receive_greeting_bytes(fd, challenge);
  GreetingBytes hello = greeter.write(test::hello_of_rank_0(key_of(5).public_key()), challenge);
  hello[44] ^= 1;
  send_greeting_bytes(fd, hello);
  receive_greeting_bytes(fd, answer);
  CHECK(Greeter::parse(answer)->refusal == Greeting::Refusal::authentication);
  ::close(fd);
  // The accept's key replaced on its way: the caller's first frame does not open.
  Caller caller(b.port());
  PublicKey attacker = key_of(6).public_key();
  std::copy(attacker.begin(), attacker.end(), caller.accept.begin() + 44);
  CHECK(!greeter.authentic(caller.accept, caller.hello));
  caller.prove();
  CHECK(outcome(b, 0) != Failure::none);
}

void weak_public_keys_are_refused() {
  PublicKey one{};
  one[0] = 1;
  for (const PublicKey& weak : {PublicKey{}, one}) {
    CHECK(!key_of(1).agree(weak));
    Loop b(config(1));
    b.connect(0, "127.0.0.1", 1);
    int fd = dial(b.port());
    GreetingBytes challenge{};
    receive_greeting_bytes(fd, challenge);
    send_greeting_bytes(fd, Greeter(kSecret).write(test::hello_of_rank_0(weak), challenge));
    std::uint8_t byte;
    CHECK(::recv(fd, &byte, 1, 0) <= 0);
    CHECK(outcome(b, 0) == Failure::protocol);
    ::close(fd);
  }
}

void unknown_extensions_are_skipped() {
  Greeter greeter(kSecret);
  Greeting hello = test::hello_of_rank_0(key_of(1).public_key());
  GreetingBytes bytes = greeter.write(hello);
  bytes[76] = 0x7f;
  bytes[79] = 3;
  CHECK(Greeter::parse(bytes).has_value());
  bytes[79] = 200;
  CHECK(!Greeter::parse(bytes).has_value());
}

// A peer that speaks gwS2 sends 80 bytes and waits; both roles name the version instead of "no answer".
void another_version_is_named() {
  const std::uint8_t old_greeting[80] = {'g', 'w', 'S', '2', 4};
  // 1. It listens.
  int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  CHECK(::bind(listener, reinterpret_cast<sockaddr*>(&at), size) == 0 && ::listen(listener, 4) == 0);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size);
  LoopConfig first = config(0);
  first.connect_timeout = 2 * kSecond;
  Loop a(first);
  a.connect(1, "127.0.0.1", ntohs(at.sin_port));
  int accepted = ::accept(listener, nullptr, nullptr);
  send_greeting_bytes(accepted, old_greeting);
  GreetingBytes hello{};
  receive_greeting_bytes(accepted, hello);
  auto parsed = Greeter::parse(hello);
  CHECK(parsed && parsed->rank == 0);  // the other side learns the version
  CHECK(outcome(a, 1) == Failure::wrong_version);
  CHECK(a.counters().wrong_version == 1);
  ::close(accepted);
  ::close(listener);
  // 2. It connects and sends its HELLO.
  Loop b(config(1));
  b.connect(0, "127.0.0.1", 1);
  int fd = dial(b.port());
  send_greeting_bytes(fd, old_greeting);
  CHECK(outcome(b, 0) == Failure::wrong_version);
  ::close(fd);
}

}  // namespace

int main() {
  the_job_secret_and_the_recording_do_not_determine_the_keys();
  every_connection_has_its_own_public_key();
  a_changed_public_key_fails_the_tag_or_the_first_frame();
  weak_public_keys_are_refused();
  unknown_extensions_are_skipped();
  another_version_is_named();
  return gradwire::test::finish();
}
