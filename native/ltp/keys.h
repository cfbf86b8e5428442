// The key schedule of one connection: from the job secret and both nonces to keys that seal and open under the right
// generation. Each direction advances independently; docs/ltp.md section 6.
#pragma once
#include <optional>

#include "core/crypto.h"
#include "ltp/packet.h"

namespace gradwire::ltp {

// Authenticates handshake packets; the same for the whole job.
Secret handshake_key(Bytes job_secret);

struct TrafficSecrets {
  Secret initiator;  // protects what the initiator sends
  Secret responder;
};
TrafficSecrets traffic_secrets(Bytes job_secret, const Nonce& initiator, const Nonce& responder, Bytes transcript);

class SealingKeys {
 public:
  explicit SealingKeys(const Secret& secret) : secret_(secret), aead_(secret, Aead::Direction::seal) {}
  std::uint8_t generation() const { return generation_; }
  std::uint64_t sealed() const { return sealed_; }
  bool seal(std::uint64_t number, Bytes header, Bytes frames, Bytes payload, std::uint8_t* out, bool encrypt) {
    ++sealed_;
    return aead_.seal(number, header, frames, payload, out, encrypt);
  }
  void advance();

 private:
  Secret secret_;
  Aead aead_;
  std::uint64_t sealed_ = 0;
  std::uint8_t generation_ = 0;
};

class OpeningKeys {
 public:
  explicit OpeningKeys(const Secret& secret);
  // Uses the generation that the header names. An authentic packet of the next generation advances to it; the previous
  // one is kept for reordered packets.
  bool open(const SealedHeader& header, Bytes header_bytes, MutableBytes body, bool encrypted);

 private:
  void advance();
  Secret next_secret_;
  std::optional<Aead> previous_;
  Aead current_;
  Aead next_;
  std::uint8_t generation_ = 0;
};

}  // namespace gradwire::ltp
