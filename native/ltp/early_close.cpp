#include "ltp/early_close.h"

namespace gradwire::ltp {

double EarlyClose::ratio() const {
  std::size_t known = std::min(count_, kHistory);
  if (known < kEnough) return kPatience;
  std::array<double, kHistory> sorted = ratios_;
  auto place = sorted.begin() + static_cast<std::ptrdiff_t>(known * kPercentile / 100);
  std::nth_element(sorted.begin(), place, sorted.begin() + static_cast<std::ptrdiff_t>(known));
  return *place;
}

EarlyClose::Limits EarlyClose::limits(std::uint64_t size, Time rtprop, double btlbw) const {
  Limits limits;
  limits.slack = std::max(settings_.deadline_slack, 2 * rtprop);
  if (btlbw <= 0 || rtprop <= 0) {
    limits.threshold = limits.deadline = settings_.first_deadline;
    return limits;
  }
  Time waiting = rtprop * 3 / 2, sending = to_time(static_cast<double>(size) / btlbw * kSecond);
  limits.formula = waiting + sending;
  limits.representative = sending > waiting;
  limits.threshold = to_time(ratio() * static_cast<double>(limits.formula));
  limits.deadline = std::max(limits.formula, limits.threshold) + limits.slack;
  return limits;
}

void EarlyClose::on_closed(const Limits& limits, Time elapsed, double fraction) {
  if (!limits.representative || fraction <= 0) return;
  ratios_[count_++ % kHistory] = static_cast<double>(elapsed) / fraction / static_cast<double>(limits.formula);
}

}  // namespace gradwire::ltp
