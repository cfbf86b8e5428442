// Control: frames that must arrive. They are queued here, sent in packets, and queued again when their packet is lost.
#pragma once
#include <cstdint>
#include <deque>

#include "ltp/frame.h"

namespace gradwire::ltp {

// Small enough to be stored with each sent packet; the frame itself is built from the current state when it is sent.
struct Control {
  FrameType type = FrameType::padding;
  std::uint16_t part = 0;
  TransferId id = 0;
  std::uint64_t tag = 0;
};

using ControlQueue = std::deque<Control>;

inline constexpr std::size_t kControlsPerPacket = 3;

}  // namespace gradwire::ltp
