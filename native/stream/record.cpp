#include "stream/record.h"

namespace gradwire::stream {
namespace {

// 2^20 records of at most 64 KiB are 2^32 blocks under one key: GCM's distinguishing bound stays below 2^-64. Both ends
// count the same records, so no message is needed.
constexpr std::uint64_t kRecordsPerKey = std::uint64_t{1} << 20;

}  // namespace

std::uint64_t RecordKeys::next_number() {
  if (number_ == kRecordsPerKey) {
    HeldSecret next;
    hkdf_expand(secret_, "gradwire stream update", {}, next);
    secret_ = next;
    aead_ = Aead(secret_, direction_);
    number_ = 0;
  }
  return number_++;
}

bool RecordKeys::seal(Bytes text, std::uint8_t* out, std::uint8_t* tag, bool encrypt) {
  return aead_.seal_detached(next_number(), text, out, tag, encrypt);
}

bool RecordKeys::open(MutableBytes text, Bytes tag, bool encrypted) {
  return aead_.open_detached(next_number(), text, tag, encrypted);
}

}  // namespace gradwire::stream
