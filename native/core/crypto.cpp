#include "core/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <stdexcept>
#include <vector>

namespace gradwire {

void wipe(MutableBytes bytes) { OPENSSL_cleanse(bytes.data(), bytes.size()); }

Secret sha256(Bytes data) {
  Secret digest;
  SHA256(data.data(), data.size(), digest.data());
  return digest;
}

HeldSecret hmac_sha256(Bytes key, Bytes data) {
  HeldSecret digest;
  unsigned size = digest.size();
  // OpenSSL takes a null key as "reuse the last one", so an empty key needs an address.
  static const std::uint8_t none = 0;
  if (!HMAC(EVP_sha256(), key.empty() ? &none : key.data(), static_cast<int>(key.size()), data.data(), data.size(),
            digest.data(), &size))
    throw std::runtime_error("OpenSSL refuses HMAC-SHA256");
  return digest;
}

HeldSecret hkdf_extract(Bytes salt, Bytes secret) { return hmac_sha256(salt, secret); }

void hkdf_expand(const Secret& key, std::string_view label, Bytes context, MutableBytes out) {
  std::vector<std::uint8_t> info(label.begin(), label.end());
  info.insert(info.end(), context.begin(), context.end());
  info.push_back(1);  // the first and only block of RFC 5869's output
  HeldSecret block = hmac_sha256(key, info);
  if (out.size() > block.size()) throw std::logic_error("hkdf_expand gives at most 32 bytes");
  std::memcpy(out.data(), block.data(), out.size());
}

bool constant_time_equal(Bytes a, Bytes b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void Aead::Free::operator()(evp_cipher_ctx_st* context) const { EVP_CIPHER_CTX_free(context); }

Aead::Aead(const Secret& traffic_secret, Direction direction) : context_(EVP_CIPHER_CTX_new()), direction_(direction) {
  std::array<std::uint8_t, 16> key;
  hkdf_expand(traffic_secret, "ltp1 key", {}, key);
  hkdf_expand(traffic_secret, "ltp1 iv", {}, iv_);
  int encrypting = direction == Direction::seal;
  bool ok = context_ && EVP_CipherInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, key.data(), nullptr, encrypting);
  wipe(key);
  if (!ok) throw std::runtime_error("OpenSSL has no AES-128-GCM");
}

Aead::~Aead() = default;
Aead::Aead(Aead&&) noexcept = default;
Aead& Aead::operator=(Aead&&) noexcept = default;

// The nonce is the key's IV with the packet number xored into its last eight bytes: unique as long as numbers are.
bool Aead::start(std::uint64_t number) {
  std::array<std::uint8_t, 12> nonce = iv_;
  for (int i = 0; i < 8; ++i) nonce[static_cast<std::size_t>(11 - i)] ^= static_cast<std::uint8_t>(number >> (8 * i));
  return EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data(), -1) == 1;
}

namespace {

bool update(evp_cipher_ctx_st* context, std::uint8_t* out, Bytes in) {
  int done = 0;
  return in.empty() || EVP_CipherUpdate(context, out, &done, in.data(), static_cast<int>(in.size())) == 1;
}

bool finish(evp_cipher_ctx_st* context) {
  std::uint8_t none[16];
  int done = 0;
  return EVP_CipherFinal_ex(context, none, &done) == 1;
}

}  // namespace

bool Aead::seal(std::uint64_t number, Bytes header, Bytes frames, Bytes payload, std::uint8_t* out, bool encrypt) {
  auto* context = context_.get();
  std::size_t size = frames.size() + payload.size();
  if (!start(number) || !update(context, nullptr, header)) return false;
  // One call over one text: a second call costs more than the copy, and GCM starts it in the middle of a block.
  if (!frames.empty() && out != frames.data()) std::memmove(out, frames.data(), frames.size());
  if (!payload.empty()) std::memcpy(out + frames.size(), payload.data(), payload.size());
  if (!update(context, encrypt ? out : nullptr, {out, size})) return false;
  return finish(context) && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, 16, out + size) == 1;
}

bool Aead::open(std::uint64_t number, Bytes header, MutableBytes body, bool encrypted) {
  if (body.size() < 16) return false;
  auto* context = context_.get();
  MutableBytes text = body.first(body.size() - 16);
  if (!start(number) || !update(context, nullptr, header)) return false;
  if (!update(context, encrypted ? text.data() : nullptr, text)) return false;
  if (EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, 16, body.data() + text.size()) != 1) return false;
  return finish(context);
}

bool Aead::seal_detached(std::uint64_t number, Bytes text, std::uint8_t* out, std::uint8_t* tag, bool encrypt) {
  auto* context = context_.get();
  return start(number) && update(context, encrypt ? out : nullptr, text) && finish(context) &&
         EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, 16, tag) == 1;
}

bool Aead::open_detached(std::uint64_t number, MutableBytes text, Bytes tag, bool encrypted) {
  auto* context = context_.get();
  if (tag.size() != 16 || !start(number) || !update(context, encrypted ? text.data() : nullptr, text)) return false;
  return EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, 16, const_cast<std::uint8_t*>(tag.data())) == 1 &&
         finish(context);
}

}  // namespace gradwire
