#include "stream/greeting.h"

#include <string_view>
#include <vector>

#include "core/extensions.h"

namespace gradwire::stream {
namespace {

constexpr std::uint32_t kMagic = 0x67775333;  // "gwS3": the protocol and its version
constexpr std::size_t kTagSize = 16;
constexpr std::size_t kBody = kGreeting - kTagSize;

Bytes text(std::string_view view) { return {reinterpret_cast<const std::uint8_t*>(view.data()), view.size()}; }

}  // namespace

Greeter::Greeter(Bytes job_secret)
    : job_key_(hkdf_extract(text("gradwire stream job"), job_secret)),
      key_(hkdf_extract(text("gradwire stream handshake"), job_secret)) {}

Tag Greeter::tag(Bytes body, Bytes context) const {
  std::vector<std::uint8_t> joined(body.begin(), body.end());
  joined.insert(joined.end(), context.begin(), context.end());
  Secret full = hmac_sha256(key_, joined);
  Tag cut;
  std::memcpy(cut.data(), full.data(), cut.size());
  return cut;
}

GreetingBytes Greeter::write(const Greeting& greeting, Bytes context) const {
  GreetingBytes bytes{};
  Writer out(MutableBytes(bytes).first(kBody));
  out.u32(kMagic);
  out.u8(static_cast<std::uint8_t>(greeting.kind));
  out.u8(static_cast<std::uint8_t>(greeting.refusal));
  out.u8(greeting.encrypt);
  out.u8(greeting.rings);
  out.u32(greeting.rank);
  out.u32(greeting.peer_rank);
  out.u64(greeting.epoch);
  out.u32(greeting.credit);
  out.bytes(greeting.nonce);
  out.bytes(greeting.key);
  Tag value = tag(Bytes(bytes).first(kBody), context);
  std::memcpy(bytes.data() + kBody, value.data(), kTagSize);
  return bytes;
}

std::optional<Greeting> Greeter::parse(Bytes bytes) {
  if (bytes.size() != kGreeting) return std::nullopt;
  Reader in(bytes);
  Greeting greeting;
  if (in.u32() != kMagic) return std::nullopt;
  std::uint8_t kind = in.u8(), refusal = in.u8(), encrypt = in.u8(), rings = in.u8();
  if (kind < 1 || kind > 4 || refusal > 3 || encrypt > 1 || rings > 1) return std::nullopt;
  greeting.kind = static_cast<Greeting::Kind>(kind);
  greeting.refusal = static_cast<Greeting::Refusal>(refusal);
  greeting.encrypt = encrypt;
  greeting.rings = rings;
  greeting.rank = in.u32();
  greeting.peer_rank = in.u32();
  greeting.epoch = in.u64();
  greeting.credit = in.u32();
  in.copy(greeting.nonce);
  in.copy(greeting.key);
  if (!well_formed_extensions(in.rest().first(in.left() - kTagSize))) return std::nullopt;
  return greeting;
}

std::optional<std::uint32_t> Greeter::other_version(Bytes bytes) {
  Reader in(bytes);
  std::uint32_t magic = in.u32();
  in.u32();
  std::uint32_t rank = in.u32();
  if (!in.ok() || magic == kMagic || magic >> 8 != kMagic >> 8) return std::nullopt;
  return rank;
}

bool Greeter::authentic(Bytes bytes, Bytes context) const {
  return bytes.size() == kGreeting && constant_time_equal(tag(bytes.first(kBody), context), bytes.last(kTagSize));
}

// The HELLO's tag covers the challenge, so the transcript does, too. The job's key is the salt: without it, or without
// a private key of the exchange, the result is random.
std::optional<StreamSecrets> Greeter::secrets(const EphemeralKey& own, const PublicKey& other, Bytes hello,
                                              Bytes accept) const {
  auto shared = own.agree(other);
  if (!shared) return std::nullopt;
  std::vector<std::uint8_t> transcript(hello.begin(), hello.end());
  transcript.insert(transcript.end(), accept.begin(), accept.end());
  Secret context = sha256(transcript);
  HeldSecret master = hkdf_extract(job_key_, *shared);
  StreamSecrets secrets;
  hkdf_expand(master, "gradwire stream initiator", context, secrets.initiator);
  hkdf_expand(master, "gradwire stream responder", context, secrets.responder);
  return secrets;
}

}  // namespace gradwire::stream
