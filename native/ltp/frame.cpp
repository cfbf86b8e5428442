#include "ltp/frame.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace gradwire::ltp {
namespace {

constexpr double kShareSteps = 2048;

void start(Writer& out, FrameType type) { out.u8(static_cast<std::uint8_t>(type)); }

// Padding extends to the packet's end and is zero: other bytes could get a meaning in a later version.
bool read_padding(Reader& in) {
  Bytes rest = in.bytes(in.left());
  return std::all_of(rest.begin(), rest.end(), [](std::uint8_t byte) { return byte == 0; });
}

bool read(Reader& in, AckFrame& ack) {
  ack.base = in.u48();
  ack.delay_us = in.u32();
  ack.stamp_us = in.u32();
  ack.words = in.u8();
  if (ack.words == 0 || ack.words > kAckWords) return false;
  for (std::size_t w = 0; w < ack.words; ++w) ack.bits[w] = in.u64();
  return in.ok() && ack.base % 64 == 0 && ack.bits[ack.words - 1u] != 0;
}

bool read_range(Reader& in, GrainRange& range, std::uint64_t grains) {
  range.first = in.u32();
  range.count = in.u32();
  return in.ok() && range.count > 0 && std::uint64_t{range.first} + range.count <= grains;
}

void write(Writer& out, const GrainRange& range) {
  out.u32(range.first);
  out.u32(range.count);
}

bool read(Reader& in, OpenFrame& open) {
  open.id = in.u64();
  open.tag = in.u64();
  open.size = in.u64();
  open.grain = in.u16();
  open.element = in.u16();
  open.tolerance = in.u32();
  open.least = in.u32();
  open.rtprop_us = in.u32();
  open.btlbw = in.u64();
  std::uint8_t standing = in.u8();
  open.standing = static_cast<Standing>(standing);
  open.critical_count = in.u8();
  if (!in.ok() || standing > static_cast<std::uint8_t>(Standing::posted) || open.grain == 0 || open.element == 0 ||
      open.grain % open.element || open.size == 0 || open.tolerance > kWhole || open.least > open.tolerance ||
      open.critical_count > kCriticalRanges)
    return false;
  std::uint64_t grains = (open.size - 1) / open.grain + 1;
  if (grains > 0xffffffffu) return false;
  for (std::size_t i = 0; i < open.critical_count; ++i)
    if (!read_range(in, open.critical[i], grains)) return false;
  return true;
}

bool read(Reader& in, DataFrame& data, bool weighted) {
  data.id = in.u64();
  data.first = in.u32();
  std::uint16_t length = in.u16();
  if (weighted) data.share = in.u16();
  data.bytes = in.bytes(length);
  return in.ok() && !data.bytes.empty();
}

bool read(Reader& in, CloseFrame& close) {
  close.id = in.u64();
  std::uint8_t reason = in.u8();
  close.reason = static_cast<CloseReason>(reason);
  close.received = in.u64();
  close.part = in.u16();
  close.parts = in.u16();
  close.count = in.u16();
  if (!in.ok() || reason < 1 || reason > static_cast<std::uint8_t>(CloseReason::cancelled) ||
      close.part >= close.parts || close.count > kCloseRanges)
    return false;
  for (std::size_t i = 0; i < close.count; ++i)
    if (!read_range(in, close.missing[i], 0xffffffffull)) return false;
  return true;
}

bool read(Reader& in, ShutFrame& shut) {
  std::uint8_t reason = in.u8();
  shut.reason = static_cast<ShutReason>(reason);
  return in.ok() && reason >= 1 && reason <= static_cast<std::uint8_t>(ShutReason::replaced);
}

}  // namespace

// Rounded up, so that the shares of all frames of a transfer sum up to no less than 1.
std::uint16_t write_share(double share) {
  return share > 0 ? static_cast<std::uint16_t>(std::clamp(-kShareSteps * std::log2(share), 0.0, 65535.0)) : 65535;
}

double read_share(std::uint16_t code) { return std::exp2(-code / kShareSteps); }

std::uint64_t AckFrame::largest() const {
  return base + 64 * (words - 1u) + static_cast<std::uint64_t>(std::bit_width(bits[words - 1u])) - 1;
}

bool next_frame(Reader& in, Frame& frame) {
  switch (static_cast<FrameType>(in.u8())) {
    case FrameType::padding: frame = PaddingFrame{}; return in.ok() && read_padding(in);
    case FrameType::ping: frame = PingFrame{}; return in.ok();
    case FrameType::ack: return read(in, frame.emplace<AckFrame>());
    case FrameType::open: return read(in, frame.emplace<OpenFrame>());
    case FrameType::data: return read(in, frame.emplace<DataFrame>(), false);
    case FrameType::weighted: return read(in, frame.emplace<DataFrame>(), true);
    case FrameType::challenge: frame.emplace<ChallengeFrame>().token = in.u64(); return in.ok();
    case FrameType::response: frame.emplace<ResponseFrame>().token = in.u64(); return in.ok();
    case FrameType::posted: {
      auto& posted = frame.emplace<PostedFrame>();
      posted.tag = in.u64();
      posted.size = in.u64();
      return in.ok();
    }
    case FrameType::grant: frame.emplace<GrantFrame>().id = in.u64(); return in.ok();
    case FrameType::hold: frame.emplace<HoldFrame>().id = in.u64(); return in.ok();
    case FrameType::once: frame.emplace<OnceFrame>().id = in.u64(); return in.ok();
    case FrameType::close: return read(in, frame.emplace<CloseFrame>());
    case FrameType::abort: frame.emplace<AbortFrame>().id = in.u64(); return in.ok();
    case FrameType::shut: return read(in, frame.emplace<ShutFrame>());
  }
  return false;
}

void write(Writer& out, const PingFrame&) { start(out, FrameType::ping); }

void write(Writer& out, const AckFrame& ack) {
  start(out, FrameType::ack);
  out.u48(ack.base);
  out.u32(ack.delay_us);
  out.u32(ack.stamp_us);
  out.u8(ack.words);
  for (std::size_t w = 0; w < ack.words; ++w) out.u64(ack.bits[w]);
}

std::size_t size_of(const OpenFrame& open) { return 51 + 8 * std::size_t{open.critical_count}; }

void write(Writer& out, const OpenFrame& open) {
  start(out, FrameType::open);
  out.u64(open.id);
  out.u64(open.tag);
  out.u64(open.size);
  out.u16(open.grain);
  out.u16(open.element);
  out.u32(open.tolerance);
  out.u32(open.least);
  out.u32(open.rtprop_us);
  out.u64(open.btlbw);
  out.u8(static_cast<std::uint8_t>(open.standing));
  out.u8(open.critical_count);
  for (std::size_t i = 0; i < open.critical_count; ++i) write(out, open.critical[i]);
}

void write_data_header(Writer& out, TransferId id, std::uint32_t first, std::size_t length,
                       std::optional<std::uint16_t> share) {
  start(out, share ? FrameType::weighted : FrameType::data);
  out.u64(id);
  out.u32(first);
  out.u16(length);
  if (share) out.u16(*share);
}

void write(Writer& out, const PostedFrame& posted) {
  start(out, FrameType::posted);
  out.u64(posted.tag);
  out.u64(posted.size);
}

void write(Writer& out, const GrantFrame& grant) {
  start(out, FrameType::grant);
  out.u64(grant.id);
}

void write(Writer& out, const HoldFrame& hold) {
  start(out, FrameType::hold);
  out.u64(hold.id);
}

void write(Writer& out, const OnceFrame& once) {
  start(out, FrameType::once);
  out.u64(once.id);
}

void write(Writer& out, const ChallengeFrame& challenge) {
  start(out, FrameType::challenge);
  out.u64(challenge.token);
}

void write(Writer& out, const ResponseFrame& response) {
  start(out, FrameType::response);
  out.u64(response.token);
}

std::size_t size_of(const CloseFrame& close) { return 24 + 8 * std::size_t{close.count}; }

void write(Writer& out, const CloseFrame& close) {
  start(out, FrameType::close);
  out.u64(close.id);
  out.u8(static_cast<std::uint8_t>(close.reason));
  out.u64(close.received);
  out.u16(close.part);
  out.u16(close.parts);
  out.u16(close.count);
  for (std::size_t i = 0; i < close.count; ++i) write(out, close.missing[i]);
}

void write(Writer& out, const AbortFrame& abort) {
  start(out, FrameType::abort);
  out.u64(abort.id);
}

void write(Writer& out, const ShutFrame& shut) {
  start(out, FrameType::shut);
  out.u8(static_cast<std::uint8_t>(shut.reason));
}

}  // namespace gradwire::ltp
