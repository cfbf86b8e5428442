// ReverseDelay: queueing delay of ACKs on the reverse path, as one-way delay above the recent minimum. It compares two
// clocks, but uses only changes of their difference, so their offset does not matter.
#pragma once
#include <algorithm>
#include <cstdint>

#include "core/time.h"

namespace gradwire::ltp {

class ReverseDelay {
 public:
  // The minimum is kept for one to two of these: long enough to have seen the queue empty, short enough that two clocks
  // with a drift of 100 ppm are off by a millisecond at most.
  static constexpr Time kHalf = 5 * kSecond;
  static constexpr Time kGain = 8;

  void sample(Time now, std::uint32_t stamp_us) {
    // 32 bits of microseconds wrap every 71 minutes; the difference of two readings stays correct.
    auto one_way = static_cast<std::uint32_t>(now / kMicrosecond) - stamp_us;
    if (!known_) {
      anchor_ = one_way;
      known_ = true;
    }
    Time delay = Time{static_cast<std::int32_t>(one_way - anchor_)} * kMicrosecond;
    if (now - began_ > kHalf) {
      before_ = least_;
      least_ = delay;
      began_ = now;
    }
    least_ = std::min(least_, delay);
    Time queue = delay - std::min(least_, before_);
    queue_ += (queue - queue_) / kGain;
  }
  Time queue() const { return queue_; }

 private:
  bool known_ = false;
  std::uint32_t anchor_ = 0;
  Time began_ = 0, least_ = kNever, before_ = kNever, queue_ = 0;
};

}  // namespace gradwire::ltp
