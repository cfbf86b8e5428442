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

// Rounded towards zero and cut to a time that can still be added to: numbers a peer sent may ask for any.
inline Time to_time(double nanoseconds) {
  constexpr double kMost = 1e18;
  return nanoseconds > 0 ? static_cast<Time>(nanoseconds < kMost ? nanoseconds : kMost) : 0;
}

}  // namespace gradwire::ltp
