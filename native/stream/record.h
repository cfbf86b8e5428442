// RecordKeys: protection of a stream's frames: each header and each payload is sealed separately (AES-128-GCM, or GMAC
// for authentication only), numbered in order, under keys that change before their limit of use.
#pragma once
#include "core/crypto.h"

namespace gradwire::stream {

class RecordKeys {
 public:
  RecordKeys(const Secret& secret, Aead::Direction direction)
      : secret_(secret), direction_(direction), aead_(secret, direction) {}

  // Writes `text` sealed to `out`, which may be null without encryption: the text is then only read.
  bool seal(Bytes text, std::uint8_t* out, std::uint8_t* tag, bool encrypt);
  bool open(MutableBytes text, Bytes tag, bool encrypted);

 private:
  std::uint64_t next_number();

  HeldSecret secret_;
  Aead::Direction direction_;
  Aead aead_;
  std::uint64_t number_ = 0;
};

}  // namespace gradwire::stream
