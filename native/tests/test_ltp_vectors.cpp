// docs/ltp-vectors.txt states what this implementation computes from fixed inputs: tags, keys, a handshake packet and a
// sealed packet of each kind. `test_ltp_vectors print` writes the file; without an argument it is compared.
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "ltp/frame.h"
#include "ltp/handshake.h"
#include "tests/check.h"

using namespace gradwire;
using namespace gradwire::ltp;

namespace {

class Vectors {
 public:
  void comment(const char* text) { text_ << "\n# " << text << "\n"; }
  void add(const std::string& name, Bytes bytes) {
    static const char digits[] = "0123456789abcdef";
    text_ << name << " = ";
    for (std::uint8_t byte : bytes) text_ << digits[byte >> 4] << digits[byte & 15];
    text_ << "\n";
  }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
};

template <std::size_t N>
std::array<std::uint8_t, N> counting(std::uint8_t first) {
  std::array<std::uint8_t, N> bytes;
  for (std::size_t i = 0; i < N; ++i) bytes[i] = static_cast<std::uint8_t>(first + i);
  return bytes;
}

template <class F>
Datagram frame_bytes(const F& frame) {
  Datagram bytes(kBaseDatagram);
  Writer out(bytes);
  write(out, frame);
  bytes.resize(out.size());
  return bytes;
}

Datagram data_frame(std::optional<std::uint16_t> share = std::nullopt) {
  const std::uint8_t payload[] = {'g', 'r', 'a', 'd', 'i', 'e', 'n', 't'};
  Datagram bytes(share ? kWeightedHeader : kDataHeader);
  Writer out(bytes);
  write_data_header(out, 5, 2, sizeof payload, share);
  bytes.insert(bytes.end(), std::begin(payload), std::end(payload));
  return bytes;
}

OpenFrame open_frame() {
  OpenFrame open;
  open.id = 5;
  open.tag = 0x0102030405060708;
  open.size = 1000;
  open.grain = 4;
  open.element = 4;
  open.tolerance = 980'000;
  open.least = 490'000;
  open.rtprop_us = 20'000;
  open.btlbw = 12'500'000;
  open.standing = Standing::ahead;
  open.critical_count = 1;
  open.critical[0] = {0, 2};
  return open;
}

CloseFrame close_frame() {
  CloseFrame close;
  close.id = 5;
  close.reason = CloseReason::threshold;
  close.received = 988;
  close.part = 0;
  close.parts = 1;
  close.count = 2;
  close.missing[0] = {10, 2};
  close.missing[1] = {249, 1};
  return close;
}

AckFrame ack_frame() {
  AckFrame ack;
  ack.base = 64;
  ack.delay_us = 250;
  ack.stamp_us = 1'000'000;
  ack.words = 2;
  ack.bits[0] = 0xfffffffffffffffb;
  ack.bits[1] = 1;
  return ack;
}

std::vector<std::pair<std::string, Datagram>> frames() {
  return {{"PADDING", Datagram(4)},
          {"PING", frame_bytes(PingFrame{})},
          {"ACK", frame_bytes(ack_frame())},
          {"OPEN", frame_bytes(open_frame())},
          {"DATA", data_frame()},
          {"POSTED", frame_bytes(PostedFrame{0x0102030405060708, 1000})},
          {"GRANT", frame_bytes(GrantFrame{5})},
          {"CLOSE", frame_bytes(close_frame())},
          {"ABORT", frame_bytes(AbortFrame{5})},
          {"SHUT", frame_bytes(ShutFrame{ShutReason::goodbye})},
          {"HOLD", frame_bytes(HoldFrame{5})},
          {"ONCE", frame_bytes(OnceFrame{5})},
          {"WEIGHTED", data_frame(write_share(0.25))},
          {"CHALLENGE", frame_bytes(ChallengeFrame{0x3132333435363738})},
          {"RESPONSE", frame_bytes(ResponseFrame{0x3132333435363738})}};
}

Datagram sealed(SealingKeys& keys, std::uint32_t connection, std::uint64_t number, Bytes plain, bool encrypt) {
  Datagram datagram(kSealedOverhead + plain.size());
  Writer out(MutableBytes(datagram).first(kSealedHeader));
  write(out, SealedHeader{keys.generation(), connection, number});
  keys.seal(number, Bytes(datagram).first(kSealedHeader), plain, {}, datagram.data() + kSealedHeader, encrypt);
  return datagram;
}

void add_keys(Vectors& vectors, const std::string& name, const Secret& secret) {
  std::array<std::uint8_t, 16> key;
  std::array<std::uint8_t, 12> iv;
  Secret next;
  hkdf_expand(secret, "ltp1 key", {}, key);
  hkdf_expand(secret, "ltp1 iv", {}, iv);
  hkdf_expand(secret, "ltp1 update", {}, next);
  vectors.add("secret_" + name, secret);
  vectors.add("key_" + name, key);
  vectors.add("iv_" + name, iv);
  vectors.add("next_secret_" + name, next);
}

std::string vectors() {
  Vectors vectors;
  auto job_secret = counting<32>(0x00);
  HeldSecret seed_i(counting<32>(0x20)), seed_r(counting<32>(0x40));
  EphemeralKey own_i(seed_i), own_r(seed_r);
  Handshake handshake(job_secret, Secret{});
  vectors.comment("Inputs");
  vectors.add("job_secret", job_secret);
  vectors.add("private_i", seed_i);
  vectors.add("private_r", seed_r);
  Hello hello;
  hello.connection = 0xa1a2a3a4;
  hello.rank = 0;
  hello.peer_rank = 1;
  hello.epoch = 0x1112131415161718;
  hello.nonce = counting<32>(0x60);
  hello.credit = 4u << 20;
  hello.largest_datagram = 8972;
  hello.key = own_i.public_key();
  Accept accept;
  accept.connection = hello.connection;
  accept.own_connection = 0xb1b2b3b4;
  accept.rank = 1;
  accept.epoch = 0x2122232425262728;
  accept.nonce = counting<32>(0x80);
  accept.credit = 4u << 20;
  accept.largest_datagram = 1472;
  accept.key = own_r.public_key();
  auto cookie = counting<24>(0xa0);

  vectors.comment("Handshake packets, whole");
  vectors.add("handshake_key", handshake_key(job_secret));
  vectors.add("HELLO", handshake.sealed(hello));
  Datagram retry = handshake.sealed(Retry{hello.connection, cookie}, hello.nonce);
  vectors.add("RETRY", retry);
  hello.cookie = cookie;
  Datagram repeated = handshake.sealed(hello), answer = handshake.sealed(accept, core(repeated));
  vectors.add("HELLO_with_cookie", repeated);
  vectors.add("ACCEPT", answer);
  vectors.add("REFUSE", handshake.sealed(Refuse{Refusal::rank_in_use, hello.connection, accept.epoch}, hello.nonce));
  vectors.add("RESET", handshake.sealed(Reset{hello.connection, 1, accept.epoch}));
  vectors.add("KNOCK", handshake.sealed(Knock{1, 0, accept.epoch}));
  vectors.add("VERSIONS", handshake.sealed(Versions{hello.connection}, hello.nonce));

  vectors.comment("Keys");
  HeldSecret shared = *own_i.agree(own_r.public_key());
  HelloCore hello_core = core(repeated);
  Datagram transcript(hello_core.begin(), hello_core.end());
  transcript.insert(transcript.end(), answer.begin(), answer.end() - kTagSize);
  vectors.add("public_i", own_i.public_key());
  vectors.add("public_r", own_r.public_key());
  vectors.add("shared", shared);
  vectors.add("job_key", job_key(job_secret));
  vectors.add("transcript_hash", sha256(transcript));
  vectors.add("master", hkdf_extract(job_key(job_secret), shared));
  TrafficSecrets secrets = *handshake.keys(own_r, hello.key, hello_core, answer);
  add_keys(vectors, "i", secrets.initiator);
  add_keys(vectors, "r", secrets.responder);

  vectors.comment("SEALED packets of the initiator: number 0 and up, one frame each; the plain frame comes first");
  SealingKeys keys(secrets.initiator);
  std::uint64_t number = 0;
  for (auto& [name, plain] : frames()) {
    vectors.add("frame_" + name, plain);
    vectors.add("SEALED_" + name, sealed(keys, accept.own_connection, number++, plain, true));
  }
  vectors.comment("The same PING authenticated only, and after one change of keys");
  vectors.add("SEALED_plain", sealed(keys, accept.own_connection, number++, frame_bytes(PingFrame{}), false));
  keys.advance();
  vectors.add("SEALED_next", sealed(keys, accept.own_connection, number++, frame_bytes(PingFrame{}), true));
  return vectors.text();
}

}  // namespace

int main(int argc, char**) {
  std::string heading =
      "# Test vectors of LTP version 4 (ltp.md): name = bytes in hexadecimal. Written by "
      "native/tests/test_ltp_vectors.\n";
  if (argc > 1) {
    std::cout << heading << vectors();
    return 0;
  }
  std::ifstream file("docs/ltp-vectors.txt");  // ctest runs in the root of the sources
  CHECK(file.good());
  std::ostringstream kept;
  kept << file.rdbuf();
  CHECK(kept.str() == heading + vectors());
  return gradwire::test::finish();
}
