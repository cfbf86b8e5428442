// EphemeralKey: the X25519 key pair of one handshake (RFC 7748, from OpenSSL). It exists until the traffic keys are
// derived: afterwards not even the job secret leads to them.
#pragma once
#include <array>
#include <memory>
#include <optional>

#include "core/crypto.h"

struct evp_pkey_st;

namespace gradwire {

inline constexpr std::size_t kPublicKeySize = 32;
using PublicKey = std::array<std::uint8_t, kPublicKeySize>;

class EphemeralKey {
 public:
  // `seed`: 32 random bytes that are used for nothing else.
  explicit EphemeralKey(const HeldSecret& seed);
  const PublicKey& public_key() const { return public_; }
  // The secret that only the two holders of private keys can compute. None when `other` is a point of low order, the
  // zero key included: the result would be zero, which everybody knows.
  std::optional<HeldSecret> agree(const PublicKey& other) const;

 private:
  struct Free {
    void operator()(evp_pkey_st* key) const;  // OpenSSL wipes it
  };
  std::unique_ptr<evp_pkey_st, Free> key_;
  PublicKey public_{};
};

}  // namespace gradwire
