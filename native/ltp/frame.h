// Frames: the content of a sealed packet, docs/ltp.md section 4. One struct per frame; `next_frame` reads them in
// order.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <variant>

#include "core/bytes.h"
#include "core/event.h"

namespace gradwire::ltp {

inline constexpr std::size_t kAckWords = 64;  // 4096 packets of history in one ACK, 512 bytes: fits the base datagram
inline constexpr std::size_t kCriticalRanges = 8;  // keeps OPEN in one base datagram
inline constexpr std::size_t kCloseRanges = 128;   // 1 KiB of ranges per CLOSE part
inline constexpr std::size_t kDataHeader = 15;
inline constexpr std::size_t kWeightedHeader = 17;  // WEIGHTED: DATA with a share of the energy
inline constexpr std::size_t kShutSize = 2;

// The credit that a transfer sent ahead of its receive uses; the minimum bounds how many small ones wait unclaimed.
constexpr std::uint64_t credit_cost(std::uint64_t size) { return size < 1024 ? 1024 : size; }

enum class FrameType : std::uint8_t {
  padding = 0,
  ping = 1,
  ack = 2,
  open = 3,
  data = 4,
  posted = 5,
  grant = 6,
  close = 7,
  abort = 8,
  shut = 9,
  hold = 10,
  once = 11,
  weighted = 12,
  challenge = 13,
  response = 14,
};

// A share s of a transfer's energy is written as the whole part of -2048 log2(s), at most 65535: a step is 0.03 %.
std::uint16_t write_share(double share);
double read_share(std::uint16_t code);

// Counts the transfers of one direction of a connection. 64 bits never wrap: a reused id would be taken for an old
// transfer, whose data is acknowledged and dropped.
using TransferId = std::uint64_t;

struct GrainRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  friend bool operator==(const GrainRange&, const GrainRange&) = default;
};

struct PaddingFrame {};
struct PingFrame {};

// Bit k of word w says that packet `base + 64 w + k` arrived; base is a multiple of 64 and the last word is not zero.
struct AckFrame {
  std::uint64_t base = 0;
  std::uint32_t delay_us = 0;  // how long the newest packet waited for this ACK
  std::uint32_t stamp_us = 0;  // when the ACK was sent, by its sender's clock: shows the queue on the reverse path
  std::uint8_t words = 0;
  std::array<std::uint64_t, kAckWords> bits;

  std::uint64_t largest() const;
};

// Why the sender may send. waiting: it may not before GRANT; ahead: it uses the receiver's credit; posted: it answers a
// POSTED.
enum class Standing : std::uint8_t { waiting = 0, ahead = 1, posted = 2 };

struct OpenFrame {
  TransferId id = 0;
  std::uint64_t tag = 0;
  std::uint64_t size = 0;
  std::uint16_t grain = 0;
  std::uint16_t element = 0;
  std::uint32_t tolerance = kWhole;  // the least fraction that satisfies the contract; kWhole is reliable
  std::uint32_t least = 0;           // the fraction that a deadline never goes below
  std::uint32_t rtprop_us = 0;       // the sender's estimate of the path; 0: unknown
  std::uint64_t btlbw = 0;           // bytes per second
  Standing standing = Standing::waiting;
  std::uint8_t critical_count = 0;
  std::array<GrainRange, kCriticalRanges> critical{};
};

// DATA, or WEIGHTED with the share of the transfer's energy that these bytes have.
struct DataFrame {
  TransferId id = 0;
  std::uint32_t first = 0;  // grain
  std::optional<std::uint16_t> share;
  Bytes bytes;
};

struct PostedFrame {
  std::uint64_t tag = 0;
  std::uint64_t size = 0;
};

struct GrantFrame {
  TransferId id = 0;
};

// The answer to an OPEN whose data has no buffer here: nothing of it may be sent before GRANT.
struct HoldFrame {
  TransferId id = 0;
};

// Everything of a tolerant transfer was sent once: what is missing now was lost.
struct OnceFrame {
  TransferId id = 0;
};

// CHALLENGE is sent to an address that a peer seems to have moved to; its RESPONSE shows that the peer receives there.
struct ChallengeFrame {
  std::uint64_t token = 0;
};
struct ResponseFrame {
  std::uint64_t token = 0;
};

struct CloseFrame {
  TransferId id = 0;
  CloseReason reason = CloseReason::complete;
  std::uint64_t received = 0;  // bytes
  std::uint16_t part = 0;
  std::uint16_t parts = 1;
  std::uint16_t count = 0;
  std::array<GrainRange, kCloseRanges> missing{};
};

struct AbortFrame {
  TransferId id = 0;
};

enum class ShutReason : std::uint8_t { goodbye = 1, protocol_error = 2, replaced = 3 };

struct ShutFrame {
  ShutReason reason = ShutReason::goodbye;
};

using Frame = std::variant<PaddingFrame, PingFrame, AckFrame, OpenFrame, DataFrame, PostedFrame, GrantFrame, CloseFrame,
                           AbortFrame, ShutFrame, HoldFrame, OnceFrame, ChallengeFrame, ResponseFrame>;

// Reads one frame into `frame`. False when the bytes are malformed; the whole packet is then dropped.
bool next_frame(Reader& in, Frame& frame);

void write(Writer& out, const PingFrame& frame);
void write(Writer& out, const AckFrame& frame);
void write(Writer& out, const OpenFrame& frame);
void write(Writer& out, const PostedFrame& frame);
void write(Writer& out, const GrantFrame& frame);
void write(Writer& out, const HoldFrame& frame);
void write(Writer& out, const OnceFrame& frame);
void write(Writer& out, const ChallengeFrame& frame);
void write(Writer& out, const ResponseFrame& frame);
void write(Writer& out, const CloseFrame& frame);
void write(Writer& out, const AbortFrame& frame);
void write(Writer& out, const ShutFrame& frame);
// Only the header: the bytes are sealed directly from the sender's tensor.
void write_data_header(Writer& out, TransferId id, std::uint32_t first, std::size_t length,
                       std::optional<std::uint16_t> share = std::nullopt);

std::size_t size_of(const OpenFrame& frame);
std::size_t size_of(const CloseFrame& frame);

}  // namespace gradwire::ltp
