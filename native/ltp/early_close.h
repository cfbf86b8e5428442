// EarlyClose: when a loss-tolerant transfer may end without its last packets. Before LT, or the sender's ONCE, it
// closes only when complete; after that, when at least the fraction p arrived; at the deadline, with what is there.
// LTP, IWQoS 2023.
//   formula  = 1.5 RTprop + size / BtlBw
//   LT       = formula x 90th percentile of (full-delivery time / formula) over the last 64 transfers
//   slack    = max(deadline_slack, 2 RTprop)
//   deadline = LT, but not below the formula, + slack
// The sender's rate may be stale. If p has not arrived by the deadline, the receiver predicts from its own arrivals
// when it will, and continues until then while data arrives: until nothing new arrived for a quarter of the time so far
// (at least the slack), and at most four times as long as the first prediction. It never closes below the fraction
// `least` of OPEN. The percentile is taken over ratios, so that it holds for transfers of different sizes. LT is for
// transfers slower than nine of ten; at the 10th percentile nine of ten transfers were cut a few packets before their
// end (1.5 % of the data where 0.1 % was lost, and no time saved). A transfer closed before it was complete counts with
// elapsed / fraction: if only complete ones counted, a formula too optimistic (senders that share a bottleneck each
// report more than their share) would cut every transfer. The clock starts with the first packet, so a transfer of one
// packet takes no time and its ratio does not apply to larger ones: only transfers whose sending takes longer than 1.5
// RTprop count, and the deadline's ratio is at least 1.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

#include "core/time.h"
#include "ltp/settings.h"

namespace gradwire::ltp {

class EarlyClose {
 public:
  explicit EarlyClose(const Settings& settings) : settings_(settings) {}

  struct Limits {
    Time formula = 0;  // 0: the path's rate is unknown
    Time threshold = 0;
    Time deadline = 0;
    Time slack = 0;
    bool extends = true;          // false: the receive has its own deadline
    bool representative = false;  // sending is most of the formula: its ratio holds for other sizes too
  };
  Limits limits(std::uint64_t size, Time rtprop, double btlbw) const;
  // `fraction` of the bytes had arrived after `elapsed`.
  void on_closed(const Limits& limits, Time elapsed, double fraction);
  // How much longer than expected a transfer may take while the expectation rests on few samples.
  static constexpr double kPatience = 4;
  // The factor of the formula: nine of ten transfers stayed below this ratio.
  double ratio() const;

 private:
  static constexpr std::size_t kHistory = 64;
  static constexpr std::size_t kPercentile = 90;
  static constexpr std::size_t kEnough = 8;  // fewer transfers do not give a percentile

  const Settings& settings_;
  std::array<double, kHistory> ratios_{};
  std::size_t count_ = 0;
};

}  // namespace gradwire::ltp
