// When a loss-tolerant transfer may end without its last packets. Before LT, or the sender's ONCE, only everything closes it;
// from then to the deadline a received fraction of at least p does; at the deadline it closes as it is. LTP, IWQoS 2023.
//   formula  = 1.5 RTprop + size / BtlBw
//   LT       = formula x 90th percentile of (full-delivery time / formula) over the last 64 transfers
//   slack    = max(deadline_slack, 2 RTprop)
//   deadline = LT, but not below the formula, + slack
// The sender's rate may be stale. Where p is not there at the deadline, the receiver projects from its own arrivals when it
// will be, and goes on until then while data flows: until nothing new came for a quarter of the time so far (at least the
// slack), and at most four times as long as it projected first. It never closes below the fraction `least` of OPEN.
// The percentile of times is taken of ratios, so that it holds for transfers of different sizes. It was the 10th before
// there was ONCE, which cut nine of ten transfers a few packets before their end (1.5 % of the data where 0.1 % was lost,
// and no time saved). Now LT is for those that are slower than nine of ten. A transfer
// that was closed before it was full counts with elapsed / fraction: were only complete ones counted, a formula too
// optimistic (senders that share a bottleneck each report more than their share) would cut every transfer for ever.
// The clock starts with the first packet, so a transfer of one packet takes no time at all and its ratio says nothing of
// larger ones: only transfers whose sending takes longer than 1.5 RTprop count, and the deadline's ratio is at least 1.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

#include "ltp/settings.h"
#include "ltp/time.h"

namespace gradwire::ltp {

class EarlyClose {
 public:
  explicit EarlyClose(const Settings& settings) : settings_(settings) {}

  struct Limits {
    Time formula = 0;  // 0: the path is not known yet
    Time threshold = 0;
    Time deadline = 0;
    Time slack = 0;
    bool extends = true;   // false: the receive brought its own deadline
    bool telling = false;  // sending is most of the formula: its ratio holds for other sizes too
  };
  Limits limits(std::uint64_t size, Time rtprop, double btlbw) const;
  // `fraction` of the bytes had arrived after `elapsed`.
  void on_closed(const Limits& limits, Time elapsed, double fraction);
  // How much longer than expected anything may take, while that is an estimate of few or of one.
  static constexpr double kPatience = 4;
  // What the formula is multiplied by: the ratio that nine of ten transfers kept below.
  double ratio() const;

 private:
  static constexpr std::size_t kHistory = 64;
  static constexpr std::size_t kPercentile = 90;
  static constexpr std::size_t kEnough = 8;  // fewer transfers say nothing about a percentile

  const Settings& settings_;
  std::array<double, kHistory> ratios_{};
  std::size_t count_ = 0;
};

}  // namespace gradwire::ltp
