#include "stream/record.h"

namespace gradwire::stream {
namespace {

// 2^20 records of at most 64 KiB are 2^32 blocks under one key: GCM's bound on telling them from noise stays below
// 2^-64. Both ends count alike, so nothing needs to be said.
constexpr std::uint64_t kRecordsPerKey = std::uint64_t{1} << 20;

}  // namespace

std::uint64_t RecordKeys::next_number() {
  if (number_ == kRecordsPerKey) {
    ltp::Secret next;
    ltp::hkdf_expand(secret_, "gradwire stream update", {}, next);
    secret_ = next;
    aead_ = ltp::Aead(secret_, direction_);
    number_ = 0;
  }
  return number_++;
}

bool RecordKeys::seal(ltp::Bytes text, std::uint8_t* out, std::uint8_t* tag, bool encrypt) {
  return aead_.seal_apart(next_number(), text, out, tag, encrypt);
}

bool RecordKeys::open(ltp::MutableBytes text, ltp::Bytes tag, bool encrypted) {
  return aead_.open_apart(next_number(), text, tag, encrypted);
}

}  // namespace gradwire::stream
