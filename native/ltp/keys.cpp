#include "ltp/keys.h"

#include <string_view>
#include <utility>

namespace gradwire::ltp {
namespace {

Bytes text(std::string_view view) { return {reinterpret_cast<const std::uint8_t*>(view.data()), view.size()}; }

Secret following(const Secret& secret) {
  Secret next;
  hkdf_expand(secret, "ltp1 update", {}, next);
  return next;
}

}  // namespace

Secret handshake_key(Bytes job_secret) { return hkdf_extract(text("ltp1 handshake"), job_secret); }

TrafficSecrets traffic_secrets(Bytes job_secret, const Nonce& initiator, const Nonce& responder, Bytes transcript) {
  std::array<std::uint8_t, 2 * kNonceSize> salt;
  std::memcpy(salt.data(), initiator.data(), kNonceSize);
  std::memcpy(salt.data() + kNonceSize, responder.data(), kNonceSize);
  Secret master = hkdf_extract(salt, job_secret);
  Secret context = sha256(transcript);
  TrafficSecrets secrets;
  hkdf_expand(master, "ltp1 initiator", context, secrets.initiator);
  hkdf_expand(master, "ltp1 responder", context, secrets.responder);
  return secrets;
}

void SealingKeys::advance() {
  secret_ = following(secret_);
  aead_ = Aead(secret_, Aead::Direction::seal);
  sealed_ = 0;
  generation_ = (generation_ + 1) & 3;
}

OpeningKeys::OpeningKeys(const Secret& secret)
    : next_secret_(following(secret)),
      current_(secret, Aead::Direction::open),
      next_(next_secret_, Aead::Direction::open) {}

bool OpeningKeys::open(const SealedHeader& header, Bytes header_bytes, MutableBytes body, bool encrypted) {
  switch ((header.generation - generation_) & 3) {
    case 0: return current_.open(header.number, header_bytes, body, encrypted);
    case 1:
      if (!next_.open(header.number, header_bytes, body, encrypted)) return false;
      advance();
      return true;
    case 3: return previous_ && previous_->open(header.number, header_bytes, body, encrypted);
    default: return false;
  }
}

void OpeningKeys::advance() {
  previous_ = std::move(current_);
  current_ = std::move(next_);
  next_secret_ = following(next_secret_);
  next_ = Aead(next_secret_, Aead::Direction::open);
  generation_ = (generation_ + 1) & 3;
}

}  // namespace gradwire::ltp
