// A frame: 32 bytes of header, then `length` bytes of payload. What a stream between two ranks consists of.
#pragma once
#include "ltp/bytes.h"

namespace gradwire::stream {

using ltp::Bytes;
using ltp::MutableBytes;

inline constexpr std::size_t kHeader = 32;
// Bulk is cut into pieces of this size: small enough to stay in a core's cache between
// socket and cipher, and for messages to take turns. Never below kEager: a small message is one piece.
inline constexpr std::size_t kPiece = 64u << 10;
// Messages up to this size count as delivered once they are written: fewer control frames, and the receiver's credit
// guarantees that there is room for them.
inline constexpr std::uint64_t kEager = 64u << 10;
// Messages that a peer may have announced, without a byte and so without credit, before they are received.
inline constexpr std::size_t kAnnouncedMost = 1u << 16;

// What a message is charged for besides its payload while nobody has asked for it: its place in the receiver's inbox
// (about 190 bytes, and what the allocator adds). Without it the smallest messages would hold many times the credit.
inline constexpr std::uint64_t kMessageCost = 256;

enum class FrameType : std::uint8_t {
  open = 1,  // id, a = tag, b = size; payload: the first bytes, perhaps none
  data,      // id, a = offset; payload: the bytes there
  grant,     // id: its receive is posted, the rest needs no credit
  credit,    // a: so many bytes may be sent ahead again
  done,      // id, a = reason (ltp::CloseReason)
  abort,     // id: the sender has cancelled it
  ping,      // a = the sender's clock
  pong,      // a = the clock that the ping carried
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
// False for anything that no correct peer writes.
bool parse(Bytes bytes, Frame& frame);

}  // namespace gradwire::stream
