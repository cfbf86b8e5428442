// Greeting: the handshake of a stream: CHALLENGE from the higher rank, which listens, HELLO from the lower one, ACCEPT
// or REFUSE, then sealed frames. Both prove that they know the job secret, and by the challenge and the HELLO's nonce
// that they are live: a recording is valid for its own connection only. No sockets.
#pragma once
#include <optional>
#include <vector>

#include "core/crypto.h"

namespace gradwire::stream {

using Nonce = std::array<std::uint8_t, 16>;

inline constexpr std::size_t kGreeting = 80;  // every message of the handshake has this size

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
};

using GreetingBytes = std::array<std::uint8_t, kGreeting>;

struct StreamSecrets {
  Secret initiator, responder;
};

class Greeter {
 public:
  explicit Greeter(Bytes job_secret);
  // `context` is the message that this one answers: the challenge for a HELLO, the HELLO for ACCEPT and REFUSE.
  GreetingBytes write(const Greeting& greeting, Bytes context = {}) const;
  // `parse`: whether the format is that of a greeting. `authentic`: whether its writer knows the secret.
  static std::optional<Greeting> parse(Bytes bytes);
  bool authentic(Bytes bytes, Bytes context = {}) const;
  StreamSecrets secrets(Bytes hello, Bytes accept) const;

 private:
  Tag tag(Bytes body, Bytes context) const;
  std::vector<std::uint8_t> job_secret_;
  Secret key_;
};

}  // namespace gradwire::stream
