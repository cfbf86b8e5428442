#include "ltp/keys.h"

#include <string_view>
#include <utility>

namespace gradwire::ltp {
namespace {

Bytes text(std::string_view view) { return {reinterpret_cast<const std::uint8_t*>(view.data()), view.size()}; }

HeldSecret following(const Secret& secret) {
  HeldSecret next;
  hkdf_expand(secret, "ltp1 update", {}, next);
  return next;
}

}  // namespace

HeldSecret handshake_key(Bytes job_secret) { return hkdf_extract(text("ltp1 handshake"), job_secret); }

HeldSecret job_key(Bytes job_secret) { return hkdf_extract(text("ltp3 job"), job_secret); }

// The job's key is the salt: without it, or without a private key of the exchange, the result is random.
TrafficSecrets traffic_secrets(const Secret& job_key, const Secret& shared, Bytes transcript) {
  HeldSecret master = hkdf_extract(job_key, shared);
  Secret context = sha256(transcript);
  TrafficSecrets secrets;
  hkdf_expand(master, "ltp3 initiator", context, secrets.initiator);
  hkdf_expand(master, "ltp3 responder", context, secrets.responder);
  return secrets;
}

void SealingKeys::advance() {
  secret_ = following(secret_);
  aead_ = Aead(secret_, Aead::Direction::seal);
  sealed_ = 0;
  generation_ = (generation_ + 1) & 3;
}

OpeningKeys::OpeningKeys(const Secret& secret, std::uint64_t limit)
    : next_secret_(following(secret)),
      current_(secret, Aead::Direction::open),
      next_(next_secret_, Aead::Direction::open),
      limit_(limit) {}

bool OpeningKeys::open(const SealedHeader& header, Bytes header_bytes, MutableBytes body, bool encrypted) {
  switch ((header.generation - generation_) & 3) {
    case 0: return count(current_.open(header.number, header_bytes, body, encrypted));
    case 1:
      if (!count(next_.open(header.number, header_bytes, body, encrypted))) return false;
      advance();
      return true;
    case 3: return previous_ && count(previous_->open(header.number, header_bytes, body, encrypted));
    default: return false;
  }
}

bool OpeningKeys::count(bool authentic) {
  ++(authentic ? opened_ : forged_);
  return authentic;
}

void OpeningKeys::advance() {
  previous_ = std::move(current_);
  current_ = std::move(next_);
  next_secret_ = following(next_secret_);
  next_ = Aead(next_secret_, Aead::Direction::open);
  opened_ = 0;
  generation_ = (generation_ + 1) & 3;
}

}  // namespace gradwire::ltp
