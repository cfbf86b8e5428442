// When a loss-tolerant transfer may end without its last packets. Before LT only everything closes it; from LT to the
// deadline a received fraction of at least p does; at the deadline it closes as it is. LTP, IWQoS 2023.
//   LT = 1.5 RTprop + size / BtlBw at first; then that formula times the 10th percentile of (full-delivery time /
//   formula) over the last 64 complete transfers, which carries the paper's percentile over transfers of different size.
//   deadline = LT + max(slack, 2 RTprop).
#pragma once
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
  };
  Limits limits(std::uint64_t size, Time rtprop, double btlbw) const;
  void on_complete(const Limits& limits, Time elapsed);
  void on_deadline();
  // What the formula is multiplied by now.
  double ratio() const;

 private:
  static constexpr std::size_t kHistory = 64;
  static constexpr std::size_t kEnough = 8;  // fewer complete transfers say nothing about a 10th percentile

  const Settings& settings_;
  std::array<double, kHistory> ratios_{};
  std::size_t count_ = 0;
  int deadlines_in_a_row_ = 0;
  double trust_ = 1;  // in what was learned; halves with each deadline close from the third in a row
};

}  // namespace gradwire::ltp
