// Sparse selection with error feedback, in one pass over memory: a = g + r; what is large enough leaves as
// (index, value) pairs in index order, the rest stays in r.
//
// What is not finite is emitted like a large value while there is room, and r keeps its old value there: a NaN
// gradient reaches the optimiser as it would in plain DDP, and never lives on in a residual.
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

// The k largest |a| (not finite counts as largest), ties to the lower index. k <= out.capacity.
Selected select_exact(const Gradient& in, int64_t k, const Pairs& out, int threads);

// The k largest |a| of those that reach the smallest normal float, as select_exact would choose; fewer where there are no
// more. About as fast as `select`.
Selected select_largest(const Gradient& in, int64_t k, const Pairs& out, int threads);

// A magnitude that about k of the elements reach; see threshold.cpp. Never below the smallest normal float.
float threshold(const Gradient& in, int64_t k);

// A magnitude that at least k of the elements reach, but for rare mistakes, and about `expected` do.
struct Glance {
  float least;
  int64_t expected;
};
Glance glance(const Gradient& in, int64_t k);

// One stretch [begin, end) of a selection, per instruction set. Indices are absolute. `limit` is a magnitude's bits.
Selected select_scalar(const Gradient& in, int64_t begin, int64_t end, uint32_t limit, const Pairs& out);
Selected select_avx2(const Gradient& in, int64_t begin, int64_t end, uint32_t limit, const Pairs& out);
Selected select_avx512(const Gradient& in, int64_t begin, int64_t end, uint32_t limit, const Pairs& out);

}  // namespace gradwire
