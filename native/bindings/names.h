// Native values as Python sees them; shared by the bindings of the wires.
#pragma once
#include <algorithm>
#include <map>
#include <string>

#include "core/event.h"
#include "core/link_stats.h"

namespace gradwire {

const char* name_of(Failure failure);
const char* name_of(CloseReason reason);
std::map<std::string, double> describe(const LinkStats& stats);

inline double seconds(Time time) { return static_cast<double>(time) / 1e9; }

// Accepts any Python float. Limited to thirty years, so that it can be added to the clock; NaN is in the past.
inline Time nanoseconds(double seconds) {
  constexpr double kMost = 1e9;
  if (!(seconds > -kMost)) return static_cast<Time>(-kMost * 1e9);
  return static_cast<Time>(std::min(seconds, kMost) * 1e9);
}

}  // namespace gradwire
