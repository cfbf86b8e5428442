// Time is an argument: nanoseconds on a monotonic clock whose zero means nothing. The core never reads a clock.
#pragma once
#include <cstdint>
#include <limits>

namespace gradwire::ltp {

using Time = std::int64_t;

inline constexpr Time kMicrosecond = 1'000;
inline constexpr Time kMillisecond = 1'000'000;
inline constexpr Time kSecond = 1'000'000'000;
inline constexpr Time kNever = std::numeric_limits<Time>::max();

}  // namespace gradwire::ltp
