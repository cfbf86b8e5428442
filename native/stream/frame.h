// Frame: the unit of a stream between two ranks: 32 bytes of header, then `length` bytes of payload.
#pragma once
#include "core/bytes.h"

namespace gradwire::stream {

inline constexpr std::size_t kHeader = 32;
// Large messages are cut into pieces of this size: small enough to stay in a core's cache between socket and cipher,
// and for messages to alternate. Never below kEager: a small message is one piece.
inline constexpr std::size_t kPiece = 64u << 10;
// Messages up to this size count as delivered once they are written: fewer control frames, and the receiver's credit
// guarantees memory for them.
inline constexpr std::uint64_t kEager = 64u << 10;
// Messages that a peer may announce without payload, and so without credit, before they are received.
inline constexpr std::size_t kAnnouncedMost = 1u << 16;

// The charge for a message in addition to its payload while no receive is posted: its entry in the receiver's inbox
// (about 190 bytes plus the allocator's overhead). Without it, small messages would use many times the credit.
inline constexpr std::uint64_t kMessageCost = 256;

enum class FrameType : std::uint8_t {
  open = 1,  // id, a = tag, b = size; payload: the first bytes, may be empty
  data,      // id, a = offset; payload: the bytes there
  grant,     // id: its receive is posted, the rest needs no credit
  credit,    // a: bytes of credit returned
  done,      // id, a = reason (CloseReason)
  abort,     // id: cancelled by the sender
  ping,      // a = the sender's clock
  pong,      // a = the clock of the ping
  goodbye,
};

inline constexpr std::uint8_t kCharged = 1;  // flag: the payload was sent against credit

struct Frame {
  FrameType type = FrameType::ping;
  std::uint8_t flags = 0;
  std::uint32_t length = 0;
  std::uint64_t id = 0, a = 0, b = 0;
};

// The credit that a frame uses up.
inline std::uint64_t charge(const Frame& frame) {
  if (!(frame.flags & kCharged)) return 0;
  return frame.length + (frame.type == FrameType::open ? kMessageCost : 0);
}

void write(MutableBytes out, const Frame& frame);
// False for bytes that no correct peer writes.
bool parse(Bytes bytes, Frame& frame);

}  // namespace gradwire::stream
