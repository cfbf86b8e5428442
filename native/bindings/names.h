// How native nouns read in Python; shared by the wires' bindings.
#pragma once
#include <algorithm>
#include <map>
#include <string>

#include "ltp/stats.h"
#include "ltp/transfer.h"

namespace gradwire {

const char* name_of(ltp::Failure failure);
std::map<std::string, double> describe(const ltp::LinkStats& stats);

// Any number that Python has for a time. Thirty years are for ever, and can be added to the clock; what is no number is past.
inline ltp::Time nanoseconds(double seconds) {
  constexpr double kMost = 1e9;
  if (!(seconds > -kMost)) return static_cast<ltp::Time>(-kMost * 1e9);
  return static_cast<ltp::Time>(std::min(seconds, kMost) * 1e9);
}

}  // namespace gradwire
