#include "emulator/rate_curve.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gradwire::emulator {

RateCurve::RateCurve(std::vector<RateStep> steps, Nanoseconds period, Nanoseconds origin)
    : constant_(0), steps_(std::move(steps)), period_(period), origin_(origin) {
  ever_serves_ = period_ > 0 && std::any_of(steps_.begin(), steps_.end(), [](const RateStep& s) { return s.rate > 0; });
}

RateCurve::Piece RateCurve::piece(Nanoseconds now) const {
  if (steps_.empty()) return {constant_, kNever};
  Nanoseconds since = std::max<Nanoseconds>(0, now - origin_);
  Nanoseconds base = origin_;
  if (period_ > 0) {
    base += since / period_ * period_;
    since %= period_;
  }
  const auto after = std::upper_bound(steps_.begin(), steps_.end(), since,
                                      [](Nanoseconds value, const RateStep& step) { return value < step.at; });
  const double rate = after == steps_.begin() ? steps_.front().rate : std::prev(after)->rate;
  if (after != steps_.end()) return {rate, base + after->at};
  return {rate, period_ > 0 ? base + period_ : kNever};
}

double RateCurve::at(Nanoseconds now) const { return piece(now).rate; }

double RateCurve::served(Nanoseconds from, Nanoseconds to) const {
  double bytes = 0;
  while (from < to) {
    const Piece now = piece(from);
    const Nanoseconds end = std::min(now.until, to);
    bytes += now.rate * static_cast<double>(end - from) * 1e-9;
    from = end;
  }
  return bytes;
}

Nanoseconds RateCurve::finish(Nanoseconds start, double bytes) const {
  while (true) {
    const Piece now = piece(start);
    if (now.rate == kUnlimited) return start;
    if (now.rate > 0) {
      const double needed = std::ceil(bytes / now.rate * 1e9);
      if (now.until == kNever || needed <= static_cast<double>(now.until - start)) {
        return needed > 9e18 ? kNever : start + static_cast<Nanoseconds>(needed);
      }
      bytes -= now.rate * static_cast<double>(now.until - start) * 1e-9;
    } else if (now.until == kNever || (!ever_serves_ && period_ > 0)) {
      return kNever;
    }
    start = now.until;
  }
}

}  // namespace gradwire::emulator
