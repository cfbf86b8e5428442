#include "ltp/handshake.h"

namespace gradwire::ltp {
namespace {

constexpr Time kCookieLife = 10 * kSecond;  // many round trips, yet too short for stolen cookies to be of use
constexpr std::size_t kHelloCore = 60;      // HELLO up to its cookie

}  // namespace

Handshake::Handshake(Bytes job_secret, const Secret& entropy)
    : job_secret_(job_secret.begin(), job_secret.end()), key_(handshake_key(job_secret)), entropy_(entropy) {
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

Nonce Handshake::fresh_nonce() {
  std::uint8_t counter[8];
  Writer(counter).u64(drawn_++);
  Nonce nonce;
  hkdf_expand(entropy_, "ltp1 nonce", counter, nonce);
  return nonce;
}

std::uint64_t Handshake::fresh_number() {
  Nonce nonce = fresh_nonce();
  return Reader(nonce).u64();
}

Datagram Handshake::core(const Hello& hello) {
  Datagram bytes(kBaseDatagram);
  Writer out(MutableBytes(bytes).first(kBaseDatagram - kTagSize));
  write(out, hello);
  bytes.resize(kHelloCore);
  return bytes;
}

TrafficSecrets Handshake::keys(const Hello& hello, const Accept& accept) const {
  Datagram transcript = core(hello);
  std::uint8_t bytes[128];
  Writer out(bytes);
  write(out, accept);
  transcript.insert(transcript.end(), out.written().begin(), out.written().end());
  return traffic_secrets(job_secret_, hello.nonce, accept.nonce, transcript);
}

}  // namespace gradwire::ltp
