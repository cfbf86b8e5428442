// A token bucket: spreads packets over time at the congestion controller's rate, in bursts small enough for shallow
// queues and large enough for segmentation offload.
#pragma once
#include <algorithm>
#include <cstdint>

#include "ltp/time.h"

namespace gradwire::ltp {

class Pacer {
 public:
  // A burst is at most what the rate gives in this time: below a timer's jitter nothing is gained by less.
  static constexpr Time kBurstTime = 500 * kMicrosecond;
  static constexpr double kBurstMost = 64 * 1024;  // one segmentation-offload super-packet

  static double burst(double rate, std::uint64_t packet) {
    double wanted = rate * static_cast<double>(kBurstTime) / kSecond;
    return std::clamp(wanted, 2.0 * static_cast<double>(packet), std::max(kBurstMost, 2.0 * static_cast<double>(packet)));
  }

  void refill(Time now, double rate, std::uint64_t packet) {
    if (now > at_) tokens_ += rate * static_cast<double>(now - at_) / kSecond;
    at_ = std::max(now, at_);
    tokens_ = std::min(tokens_, burst(rate, packet));
  }
  bool allows() const { return tokens_ > 0; }
  void spend(std::uint64_t bytes) { tokens_ -= static_cast<double>(bytes); }
  // When a worthwhile burst has gathered again; only asked when `allows` is false.
  Time ready(double rate, std::uint64_t packet) const {
    double missing = burst(rate, packet) / 2 - tokens_;
    return at_ + std::max<Time>(1, static_cast<Time>(missing / std::max(rate, 1.0) * kSecond));
  }

 private:
  double tokens_ = 0;
  Time at_ = 0;
};

}  // namespace gradwire::ltp
