// The outer format of every datagram: docs/ltp.md section 3. Parsing checks every length and never allocates.
#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "core/bytes.h"

namespace gradwire::ltp {

inline constexpr std::uint8_t kVersion = 2;
inline constexpr std::size_t kTagSize = 16;
inline constexpr std::size_t kNonceSize = 32;
inline constexpr std::size_t kCookieSize = 24;
// Every IPv6 path carries 1280 bytes, so 1200 bytes of UDP payload pass everywhere.
inline constexpr std::size_t kBaseDatagram = 1200;
inline constexpr std::size_t kSealedHeader = 12;
inline constexpr std::size_t kSealedOverhead = kSealedHeader + kTagSize;

enum class Kind : std::uint8_t { hello = 1, retry = 2, accept = 3, refuse = 4, reset = 5, knock = 6, sealed = 7 };

enum class Refusal : std::uint8_t { none = 0, rank_in_use = 1, wrong_rank = 2, too_many_peers = 3 };

using Nonce = std::array<std::uint8_t, kNonceSize>;
using Cookie = std::array<std::uint8_t, kCookieSize>;

// Requests a connection. Padded to kBaseDatagram, so that no answer is larger than the request.
struct Hello {
  bool encrypt = true;
  std::uint32_t connection = 0;  // the initiator's number for it
  std::uint32_t rank = 0;
  std::uint32_t peer_rank = 0;  // the rank it wants to reach
  std::uint64_t epoch = 0;
  Nonce nonce{};
  std::uint32_t credit = 0;  // bytes of transfers without a receive that this side stores
  std::uint16_t largest_datagram = 0;
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

struct SealedHeader {
  std::uint8_t generation = 0;  // of the key, modulo 4
  std::uint32_t connection = 0;
  std::uint64_t number = 0;
};

// The kind of a datagram of our version; none when it is empty, of another version or of an unknown kind.
std::optional<Kind> peek_kind(Bytes datagram);

// Bodies without their authentication tag. The caller appends and checks the last kTagSize bytes.
void write(Writer& out, const Hello& hello);
void write(Writer& out, const Retry& retry);
void write(Writer& out, const Accept& accept);
void write(Writer& out, const Refuse& refuse);
void write(Writer& out, const Reset& reset);
void write(Writer& out, const Knock& knock);
void write(Writer& out, const SealedHeader& header);

// Whole datagrams; the tag is included in the length but not checked. False when malformed.
bool parse(Bytes datagram, Hello& hello);
bool parse(Bytes datagram, Retry& retry);
bool parse(Bytes datagram, Accept& accept);
bool parse(Bytes datagram, Refuse& refuse);
bool parse(Bytes datagram, Reset& reset);
bool parse(Bytes datagram, Knock& knock);
bool parse(Bytes datagram, SealedHeader& header);

}  // namespace gradwire::ltp
