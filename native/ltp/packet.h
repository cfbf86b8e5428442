// The outer shape of every datagram: docs/ltp.md section 3. Parsing never trusts a length and never allocates.
#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "ltp/bytes.h"

namespace gradwire::ltp {

inline constexpr std::uint8_t kVersion = 2;
inline constexpr std::size_t kTagSize = 16;
inline constexpr std::size_t kNonceSize = 32;
inline constexpr std::size_t kCookieSize = 24;
// Every IPv6 path carries 1280 bytes, so 1200 of UDP payload pass everywhere that LTP is meant for.
inline constexpr std::size_t kBaseDatagram = 1200;
inline constexpr std::size_t kSealedHeader = 12;
inline constexpr std::size_t kSealedOverhead = kSealedHeader + kTagSize;

enum class Kind : std::uint8_t { hello = 1, retry = 2, accept = 3, refuse = 4, reset = 5, knock = 6, sealed = 7 };

enum class Refusal : std::uint8_t { none = 0, rank_in_use = 1, wrong_rank = 2, too_many_peers = 3 };

using Nonce = std::array<std::uint8_t, kNonceSize>;
using Cookie = std::array<std::uint8_t, kCookieSize>;

// Asks for a connection. Padded to kBaseDatagram, so that no answer is larger than the question.
struct Hello {
  bool encrypt = true;
  std::uint32_t connection = 0;  // how the initiator wants to be addressed
  std::uint32_t rank = 0;
  std::uint32_t peer_rank = 0;  // whom it believes it is talking to
  std::uint64_t epoch = 0;
  Nonce nonce{};
  std::uint32_t credit = 0;  // bytes of unannounced transfers this side will hold
  std::uint16_t largest_datagram = 0;
  Cookie cookie{};  // all zero in the first try
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

// "I hold no connection of that number": how a restarted peer is told from a silent one.
struct Reset {
  std::uint32_t connection = 0;
  std::uint32_t rank = 0;
  std::uint64_t epoch = 0;
};

// "I am here, waiting for your hello": sent by the side that does not initiate.
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

// The kind of a datagram of our version; nothing when it is empty, of another version or of no known kind.
std::optional<Kind> peek_kind(Bytes datagram);

// Bodies without their authentication tag. The caller appends and checks the last kTagSize bytes.
void write(Writer& out, const Hello& hello);
void write(Writer& out, const Retry& retry);
void write(Writer& out, const Accept& accept);
void write(Writer& out, const Refuse& refuse);
void write(Writer& out, const Reset& reset);
void write(Writer& out, const Knock& knock);
void write(Writer& out, const SealedHeader& header);

// Whole datagrams, tag included in the length but not looked at. False when malformed.
bool parse(Bytes datagram, Hello& hello);
bool parse(Bytes datagram, Retry& retry);
bool parse(Bytes datagram, Accept& accept);
bool parse(Bytes datagram, Refuse& refuse);
bool parse(Bytes datagram, Reset& reset);
bool parse(Bytes datagram, Knock& knock);
bool parse(Bytes datagram, SealedHeader& header);

}  // namespace gradwire::ltp
