// The key schedule of one connection: from the job secret, the exchanged secret and the transcript to keys that seal
// and open under the right generation. Each direction advances independently; docs/ltp.md section 6.
#pragma once
#include <optional>

#include "core/crypto.h"
#include "ltp/packet.h"

namespace gradwire::ltp {

// Authenticates handshake packets; the same for the whole job, and in every version.
HeldSecret handshake_key(Bytes job_secret);
// The job's part of the traffic keys.
HeldSecret job_key(Bytes job_secret);

struct TrafficSecrets {
  HeldSecret initiator;  // protects what the initiator sends
  HeldSecret responder;
};
TrafficSecrets traffic_secrets(const Secret& job_key, const Secret& shared, Bytes transcript);

// RFC 9001, section 6.6: 2^23 packets of any size under one AES-128-GCM key, and 2^52 that do not authenticate.
inline constexpr std::uint64_t kPacketsPerKey = std::uint64_t{1} << 23;
inline constexpr std::uint64_t kForgeriesMost = std::uint64_t{1} << 52;

class SealingKeys {
 public:
  // No more than `limit` packets are sealed under one key.
  explicit SealingKeys(const Secret& secret, std::uint64_t limit = kPacketsPerKey)
      : secret_(secret), aead_(secret, Aead::Direction::seal), limit_(limit) {}
  std::uint8_t generation() const { return generation_; }
  std::uint64_t sealed() const { return sealed_; }
  bool exhausted() const { return sealed_ >= limit_; }
  // False when the key's limit is reached or OpenSSL fails.
  bool seal(std::uint64_t number, Bytes header, Bytes frames, Bytes payload, std::uint8_t* out, bool encrypt) {
    if (exhausted()) return false;
    ++sealed_;
    return aead_.seal(number, header, frames, payload, out, encrypt);
  }
  void advance();

 private:
  HeldSecret secret_;
  Aead aead_;
  std::uint64_t limit_, sealed_ = 0;
  std::uint8_t generation_ = 0;
};

class OpeningKeys {
 public:
  explicit OpeningKeys(const Secret& secret, std::uint64_t limit = kPacketsPerKey);
  // Uses the generation that the header names. An authentic packet of the next generation advances to it; the previous
  // one is kept for reordered packets.
  bool open(const SealedHeader& header, Bytes header_bytes, MutableBytes body, bool encrypted);
  // The peer uses its key longer than it may, or so many forgeries arrived that the next might be accepted.
  bool exhausted() const { return opened_ > limit_ || forged_ >= kForgeriesMost; }

 private:
  bool count(bool authentic);
  void advance();
  HeldSecret next_secret_;
  std::optional<Aead> previous_;
  Aead current_;
  Aead next_;
  std::uint64_t limit_, opened_ = 0, forged_ = 0;
  std::uint8_t generation_ = 0;
};

}  // namespace gradwire::ltp
