// Pacer: a token bucket that spreads packets over time at the congestion controller's rate, in bursts small enough for
// shallow queues and large enough for segmentation offload.
#pragma once
#include <algorithm>
#include <cstdint>

#include "core/time.h"

namespace gradwire::ltp {

class Pacer {
 public:
  // A burst is what the rate sends in half a round trip, within these bounds. Each costs a wake-up of the sender, so
  // longer ones save processor time; kernel TCP's take 1 ms too.
  static constexpr Time kBurstLeast = 250 * kMicrosecond;
  static constexpr Time kBurstLongest = kMillisecond;
  static constexpr double kBurstMost = 64 * 1024;   // one segmentation-offload super-packet
  static constexpr double kAfterPause = 10 * 1460;  // TCP's initial window (RFC 6928)

  static double burst(double rate, Time rtt, std::uint64_t packet) {
    double wanted = rate * static_cast<double>(std::clamp(rtt / 2, kBurstLeast, kBurstLongest)) / kSecond;
    return std::clamp(wanted, 2.0 * static_cast<double>(packet),
                      std::max(kBurstMost, 2.0 * static_cast<double>(packet)));
  }

  void refill(Time now, double rate, double burst) {
    if (now > at_) tokens_ += rate * static_cast<double>(now - at_) / kSecond;
    at_ = std::max(now, at_);
    // At most a second burst: a sender that woke up late catches up instead of losing the rate of that time. After a
    // pause, what TCP sends at once, so that a small transfer takes one way's delay and no pacing.
    tokens_ = std::min(tokens_, std::max(2 * burst, kAfterPause));
    // Whole bursts: when an ACK wakes the sender in between, a burst must not be split into many small ones.
    if (tokens_ <= 0) open_ = false;
    if (tokens_ >= 0.98 * burst) open_ = true;
  }
  bool allows() const { return open_ && tokens_ > 0; }
  void spend(std::uint64_t bytes) { tokens_ -= static_cast<double>(bytes); }
  // When a packet may be sent: now, or when there are tokens for a whole burst.
  Time ready(double rate, double burst) const {
    if (allows()) return at_;
    return at_ + std::max<Time>(1, static_cast<Time>((burst - tokens_) / std::max(rate, 1.0) * kSecond));
  }

 private:
  double tokens_ = 0;
  bool open_ = false;
  Time at_ = 0;
};

}  // namespace gradwire::ltp
