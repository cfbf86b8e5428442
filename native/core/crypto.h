// Cryptographic primitives of the wires, all from OpenSSL: HKDF and HMAC over SHA-256, AES-128-GCM. The exchange of
// keys is in key_exchange.h.
#pragma once
#include <array>
#include <memory>
#include <string_view>

#include "core/bytes.h"

struct evp_cipher_ctx_st;

namespace gradwire {

using Secret = std::array<std::uint8_t, 32>;
using Tag = std::array<std::uint8_t, 16>;

// Overwrites `bytes`; the compiler does not leave it out.
void wipe(MutableBytes bytes);

// A secret that is overwritten when it is no longer needed.
struct HeldSecret : Secret {
  HeldSecret() : Secret{} {}
  HeldSecret(const Secret& from) : Secret(from) {}
  HeldSecret(const HeldSecret&) = default;
  HeldSecret& operator=(const HeldSecret&) = default;
  ~HeldSecret() { wipe(*this); }
};

Secret sha256(Bytes data);
HeldSecret hmac_sha256(Bytes key, Bytes data);
// RFC 5869. `hkdf_expand` gives at most 32 bytes, which is all that is needed here.
HeldSecret hkdf_extract(Bytes salt, Bytes secret);
void hkdf_expand(const Secret& key, std::string_view label, Bytes context, MutableBytes out);
// Compares in constant time.
bool constant_time_equal(Bytes a, Bytes b);

// AES-128-GCM of one direction under one key. The context lives as long as the key; per packet only the IV is set.
class Aead {
 public:
  enum class Direction { seal, open };
  Aead(const Secret& traffic_secret, Direction direction);
  ~Aead();
  Aead(Aead&&) noexcept;
  Aead& operator=(Aead&&) noexcept;

  // Writes the sealed form of `frames` then `payload` (two parts, so that payload is read in place) to `out`,
  // followed by the tag. With `encrypt` false the parts are copied and only authenticated.
  bool seal(std::uint64_t number, Bytes header, Bytes frames, Bytes payload, std::uint8_t* out, bool encrypt);
  // Opens `body` (ciphertext and tag) in place; the plain text is at the start of `body`.
  bool open(std::uint64_t number, Bytes header, MutableBytes body, bool encrypted);
  // The same with a separate tag. Without `encrypt` the text is only read, and `out` is not used.
  bool seal_detached(std::uint64_t number, Bytes text, std::uint8_t* out, std::uint8_t* tag, bool encrypt);
  bool open_detached(std::uint64_t number, MutableBytes text, Bytes tag, bool encrypted);

 private:
  bool start(std::uint64_t number);
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  std::unique_ptr<evp_cipher_ctx_st, Free> context_;
  std::array<std::uint8_t, 12> iv_{};
  Direction direction_;
};

}  // namespace gradwire
