// The outer format of every datagram: docs/ltp.md section 3. Parsing checks every length and never allocates.
#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "core/bytes.h"
#include "core/key_exchange.h"

namespace gradwire::ltp {

inline constexpr std::uint8_t kVersion = 4;
inline constexpr std::size_t kTagSize = 16;
inline constexpr std::size_t kNonceSize = 32;
inline constexpr std::size_t kCookieSize = 24;
// Every IPv6 path carries 1280 bytes, so 1200 bytes of UDP payload pass everywhere.
inline constexpr std::size_t kBaseDatagram = 1200;
inline constexpr std::size_t kSealedHeader = 12;
inline constexpr std::size_t kSealedOverhead = kSealedHeader + kTagSize;

enum class Kind : std::uint8_t {
  hello = 1,
  retry = 2,
  accept = 3,
  refuse = 4,
  reset = 5,
  knock = 6,
  sealed = 7,
  versions = 8,
};

enum class Refusal : std::uint8_t { none = 0, rank_in_use = 1, wrong_rank = 2, too_many_peers = 3 };

inline constexpr std::uint64_t kLastNumber = (std::uint64_t{1} << 48) - 1;  // of a packet

using Nonce = std::array<std::uint8_t, kNonceSize>;
using Cookie = std::array<std::uint8_t, kCookieSize>;

// Requests a connection. Padded to kBaseDatagram, so that no answer is larger than the request. Its extensions are in
// the padding, those of ACCEPT before its tag; unknown ones are skipped, and this version defines none.
struct Hello {
  bool encrypt = true;
  std::uint32_t connection = 0;  // the initiator's number for it
  std::uint32_t rank = 0;
  std::uint32_t peer_rank = 0;  // the rank it wants to reach
  std::uint64_t epoch = 0;
  Nonce nonce{};
  std::uint32_t credit = 0;  // bytes of transfers without a receive that this side stores
  std::uint16_t largest_datagram = 0;
  PublicKey key{};  // X25519, of this handshake only
  Cookie cookie{};  // all zero in the first HELLO
};

struct Retry {
  std::uint32_t connection = 0;
  Cookie cookie{};
};

struct Accept {
  bool encrypt = true;
  std::uint32_t connection = 0;  // the initiator's
  std::uint32_t own_connection = 0;
  std::uint32_t rank = 0;
  std::uint64_t epoch = 0;
  Nonce nonce{};
  std::uint32_t credit = 0;
  std::uint16_t largest_datagram = 0;
  PublicKey key{};
};

struct Refuse {
  Refusal reason = Refusal::none;
  std::uint32_t connection = 0;
  std::uint64_t epoch = 0;
};

// There is no connection of that number: distinguishes a restarted peer from a silent one.
struct Reset {
  std::uint32_t connection = 0;
  std::uint32_t rank = 0;
  std::uint64_t epoch = 0;
};

// Ready for a HELLO: sent by the side that does not initiate.
struct Knock {
  std::uint32_t rank = 0;
  std::uint32_t peer_rank = 0;
  std::uint64_t epoch = 0;
};

// Answers a HELLO of another version, in a layout that no version changes.
struct Versions {
  std::uint32_t connection = 0;
  std::uint8_t lowest = kVersion, highest = kVersion;
};

// What is the same in every version: where a HELLO has its connection number and nonce, that it has kBaseDatagram
// bytes, and its tag. It is all that an answer to another version needs.
struct AnyHello {
  std::uint32_t connection = 0;
  Nonce nonce{};
};

struct SealedHeader {
  std::uint8_t generation = 0;  // of the key, modulo 4
  std::uint32_t connection = 0;
  std::uint64_t number = 0;
};

// The kind of a datagram of our version, or `versions` of any; none when it is empty, of another version or of an
// unknown kind.
std::optional<Kind> peek_kind(Bytes datagram);

// Bodies without their authentication tag. The caller appends and checks the last kTagSize bytes.
void write(Writer& out, const Hello& hello);
void write(Writer& out, const Retry& retry);
void write(Writer& out, const Accept& accept);
void write(Writer& out, const Refuse& refuse);
void write(Writer& out, const Reset& reset);
void write(Writer& out, const Knock& knock);
void write(Writer& out, const Versions& versions);
void write(Writer& out, const SealedHeader& header);

// Whole datagrams; the tag is included in the length but not checked. False when malformed.
bool parse(Bytes datagram, Hello& hello);
bool parse(Bytes datagram, Retry& retry);
bool parse(Bytes datagram, Accept& accept);
bool parse(Bytes datagram, Refuse& refuse);
bool parse(Bytes datagram, Reset& reset);
bool parse(Bytes datagram, Knock& knock);
bool parse(Bytes datagram, Versions& versions);
bool parse(Bytes datagram, AnyHello& hello);
bool parse(Bytes datagram, SealedHeader& header);

// HELLO without its tag and with a zero cookie, which may differ between repetitions: ACCEPT's tag and the traffic keys
// cover it, with all extensions.
inline constexpr std::size_t kHelloBody = kBaseDatagram - kTagSize;
using HelloCore = std::array<std::uint8_t, kHelloBody>;
HelloCore core(Bytes hello);
HelloCore core(const Hello& hello);

}  // namespace gradwire::ltp
