// Protection of a stream's frames: each header and each payload is sealed on its own (AES-128-GCM, or GMAC when only
// authentication is asked for), numbered in order, under keys that change before they are worn out.
#pragma once
#include "ltp/crypto.h"

namespace gradwire::stream {

class RecordKeys {
 public:
  RecordKeys(const ltp::Secret& secret, ltp::Aead::Direction direction) : secret_(secret), direction_(direction), aead_(secret, direction) {}

  // Writes `text` sealed to `out` (which may be null when not encrypting: the text stays where it is).
  bool seal(ltp::Bytes text, std::uint8_t* out, std::uint8_t* tag, bool encrypt);
  bool open(ltp::MutableBytes text, ltp::Bytes tag, bool encrypted);

 private:
  std::uint64_t next_number();

  ltp::Secret secret_;
  ltp::Aead::Direction direction_;
  ltp::Aead aead_;
  std::uint64_t number_ = 0;
};

}  // namespace gradwire::stream
