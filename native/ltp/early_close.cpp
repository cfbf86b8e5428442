#include "ltp/early_close.h"

#include <algorithm>

namespace gradwire::ltp {

double EarlyClose::ratio() const {
  std::size_t known = std::min(count_, kHistory);
  if (known < kEnough) return 1;
  std::array<double, kHistory> sorted = ratios_;
  auto tenth = sorted.begin() + static_cast<std::ptrdiff_t>(known / 10);
  std::nth_element(sorted.begin(), tenth, sorted.begin() + static_cast<std::ptrdiff_t>(known));
  return 1 + trust_ * (*tenth - 1);
}

EarlyClose::Limits EarlyClose::limits(std::uint64_t size, Time rtprop, double btlbw) const {
  if (btlbw <= 0 || rtprop <= 0) return {0, settings_.first_deadline, settings_.first_deadline};
  Limits limits;
  limits.formula = rtprop * 3 / 2 + static_cast<Time>(static_cast<double>(size) / btlbw * kSecond);
  limits.threshold = static_cast<Time>(ratio() * static_cast<double>(limits.formula));
  limits.deadline = limits.threshold + std::max(settings_.deadline_slack, 2 * rtprop);
  return limits;
}

void EarlyClose::on_complete(const Limits& limits, Time elapsed) {
  deadlines_in_a_row_ = 0;
  trust_ = 1;
  if (limits.formula > 0) ratios_[count_++ % kHistory] = static_cast<double>(elapsed) / static_cast<double>(limits.formula);
}

void EarlyClose::on_deadline() {
  if (++deadlines_in_a_row_ >= 3) trust_ /= 2;
}

}  // namespace gradwire::ltp
