// Sparse selection with error feedback, in one pass over memory: a = g + r; what is large enough is written as (index,
// value) pairs in index order, the rest stays in r.
//
// A value that is not finite is written like a large one while the capacity allows, and r keeps its old value there: a
// NaN gradient reaches the optimiser as in plain DDP, and is never stored in a residual.
#pragma once
#include <cstdint>

namespace gradwire {

struct Gradient {
  const float* g;
  float* r;  // null: no feedback, nothing is written back
  int64_t n;
};

struct Pairs {
  int32_t* indices;
  float* values;
  int64_t capacity;  // what does not fit stays in r
};

struct Selected {
  int64_t count = 0, nonfinite = 0;
};

// |a| >= threshold. Entries of `out` past the returned count are scratch.
Selected select(const Gradient& in, float threshold, const Pairs& out, int threads);

}  // namespace gradwire
