// Rtt: round-trip time: smoothed, its variation, and the recent minimum (RTprop). RFC 6298 and 9002.
#pragma once
#include <algorithm>
#include <cstdlib>

#include "core/time.h"

namespace gradwire::ltp {

class Rtt {
 public:
  // The minimum is kept for one to two of these. Longer than from one ProbeRTT of BBR to the next (10 s and the time to
  // drain), so that it never consists of round trips through a standing queue only.
  static constexpr Time kWindow = 15 * kSecond;

  void sample(Time now, Time rtt, Time ack_delay) {
    // The peer is authenticated, so the ACK delay that it reports is trusted.
    Time adjusted = latest_ = std::max<Time>(rtt - ack_delay, kMicrosecond);
    if (now - began_ > kWindow) {
      before_ = least_;
      least_ = latest_;
      began_ = now;
    }
    least_ = std::min(least_, latest_);
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
  // 0 while unknown.
  Time least() const { return known() ? std::min(least_, before_) : 0; }
  // How long to wait for an acknowledgement before a probe.
  Time probe_timeout(Time ack_delay) const {
    if (!known()) return 300 * kMillisecond;
    return smoothed_ + std::max<Time>(4 * variation_, kMillisecond) + ack_delay;
  }

 private:
  Time latest_ = 0, smoothed_ = 0, variation_ = 0, least_ = kNever, before_ = kNever, began_ = 0;
};

}  // namespace gradwire::ltp
