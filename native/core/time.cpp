#include "core/time.h"

#include <algorithm>
#include <ctime>

namespace gradwire {

Time monotonic_now() {
  timespec time;
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return Time{time.tv_sec} * kSecond + time.tv_nsec;
}

std::chrono::steady_clock::time_point clock_point(Time deadline) {
  // steady_clock is CLOCK_MONOTONIC here.
  Time most = monotonic_now() + 3600 * kSecond;
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(std::min(deadline, most)));
}

}  // namespace gradwire
