// Sparse operations besides selection: gathering given indices, accumulating into the residual, adding received pairs.
#pragma once
#include <cstdint>

#include "kernels/select.h"

namespace gradwire {

// r += g, except where the sum is not finite. Returns how many were not.
int64_t accumulate(const float* g, float* r, int64_t n, int threads);

// values[i] = (g + r)[indices[i]] and r = 0 there (unless not finite: r keeps its old value); r += g elsewhere.
// False, with nothing written, if an index lies outside [0, n).
bool gather(const Gradient& in, const int32_t* indices, float* values, int64_t count, int64_t* nonfinite);

// out[indices[i]] += weight * values[i]. False, with nothing written, if an index lies outside [0, n).
bool scatter_add(const int32_t* indices, const float* values, int64_t count, float* out, int64_t n, float weight);

// Plain r += g: the minimum work of error feedback, the baseline of the benchmarks.
void add(const float* g, float* r, int64_t n, int threads);

}  // namespace gradwire
