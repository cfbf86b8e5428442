// Round-trip time: smoothed, its variation, and the least seen over ten seconds (RTprop). RFC 6298 and 9002.
#pragma once
#include <algorithm>
#include <cstdlib>

#include "ltp/time.h"

namespace gradwire::ltp {

class Rtt {
 public:
  // A path that changes shows within this time; BBR's window.
  static constexpr Time kWindow = 10 * kSecond;

  void sample(Time now, Time rtt, Time ack_delay) {
    // The peer is authenticated, so its own account of how long it held the ACK back is taken at its word.
    Time adjusted = latest_ = std::max<Time>(rtt - ack_delay, kMicrosecond);
    if (!smoothed_ || latest_ <= least_ || now - least_at_ > kWindow) least_ = latest_, least_at_ = now;
    if (!smoothed_) {
      smoothed_ = adjusted;
      variation_ = adjusted / 2;
      return;
    }
    variation_ += (std::abs(smoothed_ - adjusted) - variation_) / 4;
    smoothed_ += (adjusted - smoothed_) / 8;
  }
  bool known() const { return smoothed_ != 0; }
  Time latest() const { return latest_; }
  Time smoothed() const { return smoothed_; }
  Time variation() const { return variation_; }
  Time least() const { return least_; }
  // How long to wait for an acknowledgement before asking for one.
  Time probe_timeout(Time ack_delay) const {
    if (!known()) return 300 * kMillisecond;
    return smoothed_ + std::max<Time>(4 * variation_, kMillisecond) + ack_delay;
  }

 private:
  Time latest_ = 0, smoothed_ = 0, variation_ = 0, least_ = 0, least_at_ = 0;
};

}  // namespace gradwire::ltp
