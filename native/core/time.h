// Time: nanoseconds on a monotonic clock with an arbitrary zero. The protocols take it as an argument; only their
// drivers read the clock.
#pragma once
#include <chrono>
#include <cstdint>
#include <limits>

namespace gradwire {

using Time = std::int64_t;

inline constexpr Time kMicrosecond = 1'000;
inline constexpr Time kMillisecond = 1'000'000;
inline constexpr Time kSecond = 1'000'000'000;
inline constexpr Time kNever = std::numeric_limits<Time>::max();

// Rounds towards zero and limits the result, so that adding to it cannot overflow: a peer's numbers may be arbitrary.
inline Time to_time(double nanoseconds) {
  constexpr double kMost = 1e18;
  return nanoseconds > 0 ? static_cast<Time>(nanoseconds < kMost ? nanoseconds : kMost) : 0;
}

Time monotonic_now();
// A deadline for a condition variable's wait_until, at most an hour ahead so that the library's arithmetic cannot
// overflow.
std::chrono::steady_clock::time_point clock_point(Time deadline);

}  // namespace gradwire
