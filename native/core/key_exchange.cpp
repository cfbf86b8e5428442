#include "core/key_exchange.h"

#include <openssl/evp.h>

#include <stdexcept>

namespace gradwire {
namespace {

struct FreeContext {
  void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
};

}  // namespace

void EphemeralKey::Free::operator()(evp_pkey_st* key) const { EVP_PKEY_free(key); }

EphemeralKey::EphemeralKey(const HeldSecret& seed)
    : key_(EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, seed.data(), seed.size())) {
  std::size_t size = public_.size();
  if (!key_ || EVP_PKEY_get_raw_public_key(key_.get(), public_.data(), &size) != 1 || size != public_.size())
    throw std::runtime_error("OpenSSL has no X25519");
}

std::optional<HeldSecret> EphemeralKey::agree(const PublicKey& other) const {
  std::unique_ptr<evp_pkey_st, Free> theirs(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, other.data(), other.size()));
  std::unique_ptr<EVP_PKEY_CTX, FreeContext> context(EVP_PKEY_CTX_new(key_.get(), nullptr));
  HeldSecret shared;
  std::size_t size = shared.size();
  if (!theirs || !context || EVP_PKEY_derive_init(context.get()) != 1 ||
      EVP_PKEY_derive_set_peer(context.get(), theirs.get()) != 1 ||
      EVP_PKEY_derive(context.get(), shared.data(), &size) != 1 || size != shared.size())
    return std::nullopt;
  // OpenSSL refuses a zero result; this does not depend on its version.
  if (constant_time_equal(shared, Secret{})) return std::nullopt;
  return shared;
}

}  // namespace gradwire
