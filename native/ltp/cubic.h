// Cubic: CUBIC congestion control (RFC 9438) with pacing, for comparison and for fairness tests. Loss means congestion.
#pragma once
#include "ltp/congestion.h"

namespace gradwire::ltp {

class Cubic : public Congestion {
 public:
  Cubic(std::uint64_t packet, Time rtt);
  void on_sent(Time, std::uint64_t, std::uint64_t) override {}
  void on_ack(const AckSample& sample) override;
  void on_timeout(Time now) override;
  std::uint64_t window() const override { return static_cast<std::uint64_t>(window_); }
  double pacing_rate() const override;
  double bottleneck() const override { return slow_start_ ? 0 : rate_; }
  const char* name() const override { return "cubic"; }

 private:
  void reduce(Time now);
  void grow(const AckSample& sample);

  double packet_;
  double window_;
  double threshold_;
  double largest_ = 0;     // window before the last reduction, in packets
  double friendly_ = 0;    // the window Reno would have, in packets
  double plateau_in_ = 0;  // seconds from the reduction to the plateau (K)
  double rate_ = 0;
  Time srtt_;
  Time reduced_at_ = 0;
  Time growing_since_ = 0;
  bool slow_start_ = true;
};

}  // namespace gradwire::ltp
