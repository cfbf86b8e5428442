#include "stream/frame.h"

namespace gradwire::stream {

void write(MutableBytes bytes, const Frame& frame) {
  Writer out(bytes);
  out.u8(static_cast<std::uint8_t>(frame.type));
  out.u8(frame.flags);
  out.u16(0);
  out.u32(frame.length);
  out.u64(frame.id);
  out.u64(frame.a);
  out.u64(frame.b);
}

bool parse(Bytes bytes, Frame& frame) {
  Reader in(bytes);
  std::uint8_t type = in.u8();
  frame.flags = in.u8();
  bool reserved = in.u16() == 0;
  frame.length = in.u32();
  frame.id = in.u64();
  frame.a = in.u64();
  frame.b = in.u64();
  if (!in.ok() || !reserved || frame.flags > kCharged) return false;
  if (type < static_cast<std::uint8_t>(FrameType::open) || type > static_cast<std::uint8_t>(FrameType::goodbye))
    return false;
  frame.type = static_cast<FrameType>(type);
  bool carries = frame.type == FrameType::open || frame.type == FrameType::data;
  if ((frame.flags & kCharged) && !frame.length) return false;
  if (frame.length > kPiece || (frame.length && !carries)) return false;
  if (frame.type == FrameType::open) return frame.b > 0 && frame.length <= frame.b;
  return frame.type != FrameType::data || frame.length > 0;
}

}  // namespace gradwire::stream
