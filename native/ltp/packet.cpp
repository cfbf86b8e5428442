#include "ltp/packet.h"

#include "core/extensions.h"

namespace gradwire::ltp {
namespace {

constexpr std::uint8_t kEncryptFlag = 1;

void start(Writer& out, Kind kind, std::uint8_t flags) {
  out.u8(kVersion << 4 | static_cast<std::uint8_t>(kind));
  out.u8(flags);
}

// Reads the first two bytes; flags outside `allowed` make the packet malformed, so that later versions can use them.
std::uint8_t begin(Reader& in, Kind kind, std::uint8_t allowed) {
  if (in.u8() != (kVersion << 4 | static_cast<std::uint8_t>(kind))) in.fail();
  std::uint8_t flags = in.u8();
  if (flags & ~allowed) in.fail();
  return flags;
}

bool finish(const Reader& in) { return in.ok() && in.left() == kTagSize; }

// The rest up to the tag.
bool finish_extensions(const Reader& in) {
  return in.ok() && in.left() >= kTagSize && well_formed_extensions(in.rest().first(in.left() - kTagSize));
}

constexpr std::size_t kCookieAt = 92;  // in HELLO
constexpr std::size_t kNonceAt = 22;

}  // namespace

std::optional<Kind> peek_kind(Bytes datagram) {
  if (datagram.empty()) return std::nullopt;
  std::uint8_t kind = datagram[0] & 15;
  if (kind == static_cast<std::uint8_t>(Kind::versions)) return Kind::versions;
  if (datagram[0] >> 4 != kVersion) return std::nullopt;
  if (kind < static_cast<std::uint8_t>(Kind::hello) || kind > static_cast<std::uint8_t>(Kind::sealed))
    return std::nullopt;
  return static_cast<Kind>(kind);
}

void write(Writer& out, const Hello& hello) {
  start(out, Kind::hello, hello.encrypt ? kEncryptFlag : 0);
  out.u32(hello.connection);
  out.u32(hello.rank);
  out.u32(hello.peer_rank);
  out.u64(hello.epoch);
  out.bytes(hello.nonce);
  out.u32(hello.credit);
  out.u16(hello.largest_datagram);
  out.bytes(hello.key);
  out.bytes(hello.cookie);
  out.zeros(kHelloBody - out.size());
}

bool parse(Bytes datagram, Hello& hello) {
  Reader in(datagram);
  hello.encrypt = begin(in, Kind::hello, kEncryptFlag) & kEncryptFlag;
  hello.connection = in.u32();
  hello.rank = in.u32();
  hello.peer_rank = in.u32();
  hello.epoch = in.u64();
  in.copy(hello.nonce);
  hello.credit = in.u32();
  hello.largest_datagram = in.u16();
  in.copy(hello.key);
  in.copy(hello.cookie);
  return finish_extensions(in) && datagram.size() == kBaseDatagram && hello.largest_datagram >= kBaseDatagram;
}

void write(Writer& out, const Retry& retry) {
  start(out, Kind::retry, 0);
  out.u32(retry.connection);
  out.bytes(retry.cookie);
}

bool parse(Bytes datagram, Retry& retry) {
  Reader in(datagram);
  begin(in, Kind::retry, 0);
  retry.connection = in.u32();
  in.copy(retry.cookie);
  return finish(in);
}

void write(Writer& out, const Accept& accept) {
  start(out, Kind::accept, accept.encrypt ? kEncryptFlag : 0);
  out.u32(accept.connection);
  out.u32(accept.own_connection);
  out.u32(accept.rank);
  out.u64(accept.epoch);
  out.bytes(accept.nonce);
  out.u32(accept.credit);
  out.u16(accept.largest_datagram);
  out.bytes(accept.key);
}

bool parse(Bytes datagram, Accept& accept) {
  Reader in(datagram);
  accept.encrypt = begin(in, Kind::accept, kEncryptFlag) & kEncryptFlag;
  accept.connection = in.u32();
  accept.own_connection = in.u32();
  accept.rank = in.u32();
  accept.epoch = in.u64();
  in.copy(accept.nonce);
  accept.credit = in.u32();
  accept.largest_datagram = in.u16();
  in.copy(accept.key);
  return finish_extensions(in) && accept.largest_datagram >= kBaseDatagram;
}

void write(Writer& out, const Refuse& refuse) {
  start(out, Kind::refuse, 0);
  out.u8(static_cast<std::uint8_t>(refuse.reason));
  out.u32(refuse.connection);
  out.u64(refuse.epoch);
}

bool parse(Bytes datagram, Refuse& refuse) {
  Reader in(datagram);
  begin(in, Kind::refuse, 0);
  std::uint8_t reason = in.u8();
  refuse.reason = static_cast<Refusal>(reason);
  refuse.connection = in.u32();
  refuse.epoch = in.u64();
  return finish(in) && reason >= 1 && reason <= static_cast<std::uint8_t>(Refusal::too_many_peers);
}

void write(Writer& out, const Reset& reset) {
  start(out, Kind::reset, 0);
  out.u32(reset.connection);
  out.u32(reset.rank);
  out.u64(reset.epoch);
}

bool parse(Bytes datagram, Reset& reset) {
  Reader in(datagram);
  begin(in, Kind::reset, 0);
  reset.connection = in.u32();
  reset.rank = in.u32();
  reset.epoch = in.u64();
  return finish(in);
}

void write(Writer& out, const Knock& knock) {
  start(out, Kind::knock, 0);
  out.u32(knock.rank);
  out.u32(knock.peer_rank);
  out.u64(knock.epoch);
}

bool parse(Bytes datagram, Knock& knock) {
  Reader in(datagram);
  begin(in, Kind::knock, 0);
  knock.rank = in.u32();
  knock.peer_rank = in.u32();
  knock.epoch = in.u64();
  return finish(in);
}

void write(Writer& out, const Versions& versions) {
  start(out, Kind::versions, 0);
  out.u32(versions.connection);
  out.u8(versions.lowest);
  out.u8(versions.highest);
}

bool parse(Bytes datagram, Versions& versions) {
  Reader in(datagram);
  if ((in.u8() & 15) != static_cast<std::uint8_t>(Kind::versions)) in.fail();
  in.u8();  // flags of a version that is not ours
  versions.connection = in.u32();
  versions.lowest = in.u8();
  versions.highest = in.u8();
  return finish(in);
}

bool parse(Bytes datagram, AnyHello& hello) {
  if (datagram.size() != kBaseDatagram || (datagram[0] & 15) != static_cast<std::uint8_t>(Kind::hello)) return false;
  hello.connection = Reader(datagram.subspan(2)).u32();
  Reader(datagram.subspan(kNonceAt)).copy(hello.nonce);
  return true;
}

HelloCore core(Bytes hello) {
  HelloCore bytes;
  std::memcpy(bytes.data(), hello.data(), bytes.size());
  std::memset(bytes.data() + kCookieAt, 0, kCookieSize);
  return bytes;
}

HelloCore core(const Hello& hello) {
  HelloCore bytes;
  Writer out(bytes);
  write(out, hello);
  return core(Bytes(bytes));
}

void write(Writer& out, const SealedHeader& header) {
  start(out, Kind::sealed, header.generation & 3);
  out.u32(header.connection);
  out.u48(header.number);
}

bool parse(Bytes datagram, SealedHeader& header) {
  Reader in(datagram);
  header.generation = begin(in, Kind::sealed, 3) & 3;
  header.connection = in.u32();
  header.number = in.u48();
  return in.ok() && in.left() > kTagSize;
}

}  // namespace gradwire::ltp
