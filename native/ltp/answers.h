// AnswerBudget: limits how many datagrams an endpoint sends in answer to packets that belong to no connection. An
// attacker that replays a captured HELLO gets a bounded number of answers and uses no memory.
#pragma once
#include <algorithm>

#include "core/time.h"

namespace gradwire::ltp {

class AnswerBudget {
 public:
  // A token bucket for one second: a thousand ranks that start together are all answered at once, and an unanswered
  // HELLO is repeated after 100 ms. 1000 RETRYs are 46 KB.
  static constexpr double kPerSecond = 1000;

  bool take(Time now) {
    tokens_ = std::min(kPerSecond, tokens_ + kPerSecond * static_cast<double>(std::max<Time>(0, now - at_)) / kSecond);
    at_ = std::max(at_, now);
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
  }

 private:
  double tokens_ = kPerSecond;
  Time at_ = 0;
};

}  // namespace gradwire::ltp
