// Thresholds for a sparse selection, estimated from a sample of g + r.
#pragma once
#include "kernels/select.h"

namespace gradwire {

// A magnitude that about k of the elements reach. Never below the smallest normal float.
float threshold(const Gradient& in, int64_t k);

// A magnitude from a smaller sample: at least k of the elements reach it, with rare exceptions, and about `expected`
// do.
struct QuickThreshold {
  float least;
  int64_t expected;
};
QuickThreshold quick_threshold(const Gradient& in, int64_t k);

}  // namespace gradwire
