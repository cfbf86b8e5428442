// RateCurve: a link's rate over time: one constant, or steps that repeat (a replayed trace). Pure arithmetic.
#pragma once
#include <limits>
#include <vector>

#include "emulator/packet.h"

namespace gradwire::emulator {

struct RateStep {
  Nanoseconds at;  // since the trace's origin; the first step is at 0
  double rate;     // bytes per second, 0 where nothing passes
};

class RateCurve {
 public:
  static constexpr double kUnlimited = std::numeric_limits<double>::infinity();

  explicit RateCurve(double rate = kUnlimited) : constant_(rate) {}
  // `period` 0: the last step lasts.
  RateCurve(std::vector<RateStep> steps, Nanoseconds period, Nanoseconds origin);

  bool unlimited() const { return steps_.empty() && constant_ == kUnlimited; }
  void restart(Nanoseconds origin) { origin_ = origin; }
  double at(Nanoseconds now) const;
  double served(Nanoseconds from, Nanoseconds to) const;      // bytes
  Nanoseconds finish(Nanoseconds start, double bytes) const;  // kNever when it cannot be served

 private:
  struct Piece {
    double rate;
    Nanoseconds until;
  };
  Piece piece(Nanoseconds now) const;

  double constant_;
  std::vector<RateStep> steps_;
  Nanoseconds period_ = 0, origin_ = 0;
  bool ever_serves_ = true;
};

}  // namespace gradwire::emulator
