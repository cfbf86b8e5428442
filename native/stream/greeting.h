// Greeting: the handshake of a stream: CHALLENGE from the higher rank, which listens, HELLO from the lower one, ACCEPT
// or REFUSE, then sealed frames. Both prove that they know the job secret, and by the challenge and the HELLO's nonce
// that they are live: a recording is valid for its own connection only. HELLO and ACCEPT exchange X25519 keys of this
// connection, so that whoever learns the job secret later cannot open what was recorded. No sockets.
#pragma once
#include <optional>
#include <vector>

#include "core/key_exchange.h"

namespace gradwire::stream {

using Nonce = std::array<std::uint8_t, 16>;

inline constexpr std::size_t kGreeting = 256;  // every message of the handshake has this size
// Of a greeting of any version: the protocol's name and version, up to the rank that sent it.
inline constexpr std::size_t kAnyGreeting = 12;

struct Greeting {
  enum class Kind : std::uint8_t { hello = 1, accept, refuse, challenge };
  enum class Refusal : std::uint8_t { none = 0, wrong_rank, rank_in_use, authentication };
  Kind kind = Kind::hello;
  Refusal refusal = Refusal::none;
  bool encrypt = false;
  bool rings = false;  // over a local socket: shared memory is used
  std::uint32_t rank = 0, peer_rank = 0;
  std::uint64_t epoch = 0;
  std::uint32_t credit = 0;
  Nonce nonce{};
  PublicKey key{};  // of HELLO and ACCEPT; zero where frames are not sealed
};

using GreetingBytes = std::array<std::uint8_t, kGreeting>;

struct StreamSecrets {
  HeldSecret initiator, responder;
};

class Greeter {
 public:
  explicit Greeter(Bytes job_secret);
  // `context` is the message that this one answers: the challenge for a HELLO, the HELLO for ACCEPT and REFUSE.
  GreetingBytes write(const Greeting& greeting, Bytes context = {}) const;
  // `parse`: whether the format is that of a greeting. `authentic`: whether its writer knows the secret.
  static std::optional<Greeting> parse(Bytes bytes);
  bool authentic(Bytes bytes, Bytes context = {}) const;
  // The rank that sent a greeting of another version (its first kAnyGreeting bytes); none when it is ours, or none.
  static std::optional<std::uint32_t> other_version(Bytes bytes);
  // None when the other side's public key is of low order.
  std::optional<StreamSecrets> secrets(const EphemeralKey& own, const PublicKey& other, Bytes hello,
                                       Bytes accept) const;

 private:
  Tag tag(Bytes body, Bytes context) const;
  HeldSecret job_key_, key_;
};

}  // namespace gradwire::stream
