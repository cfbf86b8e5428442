#include "ltp/handshake.h"

namespace gradwire::ltp {
namespace {

constexpr Time kCookieLife = 10 * kSecond;  // many round trips, yet too short for stolen cookies to be of use

}  // namespace

Handshake::Handshake(Bytes job_secret, const Secret& entropy)
    : job_key_(job_key(job_secret)), key_(handshake_key(job_secret)), entropy_(entropy) {
  hkdf_expand(entropy_, "ltp1 cookie", {}, cookie_key_);
}

Tag Handshake::tag(Bytes body, Bytes context) const {
  Datagram joined(body.begin(), body.end());
  joined.insert(joined.end(), context.begin(), context.end());
  Secret full = hmac_sha256(key_, joined);
  Tag cut;
  std::memcpy(cut.data(), full.data(), cut.size());
  return cut;
}

void Handshake::put_tag(Datagram& datagram, Bytes context) const {
  Tag value = tag(Bytes(datagram).first(datagram.size() - kTagSize), context);
  std::memcpy(datagram.data() + datagram.size() - kTagSize, value.data(), kTagSize);
}

bool Handshake::authentic(Bytes datagram, Bytes context) const {
  if (datagram.size() < kTagSize) return false;
  return constant_time_equal(tag(datagram.first(datagram.size() - kTagSize), context), datagram.last(kTagSize));
}

Cookie Handshake::cookie(Time now, const Address& from, const Hello& hello) const {
  std::uint8_t bytes[128];
  Writer out(bytes);
  out.u64(static_cast<std::uint64_t>(now));
  out.bytes(from.ip);
  out.u16(from.port);
  out.u32(hello.connection);
  out.u64(hello.epoch);
  out.bytes(hello.nonce);
  Secret mac = hmac_sha256(cookie_key_, out.written());
  Cookie cookie;
  std::memcpy(cookie.data(), bytes, 8);
  std::memcpy(cookie.data() + 8, mac.data(), kCookieSize - 8);
  return cookie;
}

bool Handshake::cookie_valid(Time now, const Address& from, const Hello& hello) const {
  Reader in(hello.cookie);
  Time made = static_cast<Time>(in.u64());
  if (made > now || now - made > kCookieLife) return false;
  return constant_time_equal(cookie(made, from, hello), hello.cookie);
}

HeldSecret Handshake::draw() {
  HeldSecret drawn, next;
  hkdf_expand(entropy_, "ltp3 draw", {}, drawn);
  hkdf_expand(entropy_, "ltp3 next", {}, next);
  entropy_ = next;
  return drawn;
}

std::uint64_t Handshake::fresh_number() {
  HeldSecret drawn = draw();
  return Reader(drawn).u64();
}

std::optional<TrafficSecrets> Handshake::keys(const EphemeralKey& own, const PublicKey& other, const HelloCore& hello,
                                              Bytes accept) const {
  auto shared = own.agree(other);
  if (!shared) return std::nullopt;
  Datagram transcript(hello.begin(), hello.end());
  Bytes body = accept.first(accept.size() - kTagSize);
  transcript.insert(transcript.end(), body.begin(), body.end());
  return traffic_secrets(job_key_, *shared, transcript);
}

}  // namespace gradwire::ltp
