// fp16 and bf16 with error feedback: out = half(g + r), r = (g + r) - out.
#pragma once
#include <cstdint>

namespace gradwire {

enum class Half { fp16, bf16 };

// Rounds to nearest even and saturates finite values to the largest finite half. Where g + r is not finite it is
// passed on (every NaN as one quiet NaN) and r keeps its old value. Returns how many were not finite.
int64_t encode_half(Half kind, const float* g, float* r, uint16_t* out, int64_t n, int threads);

// out = weight * src, or out += weight * src.
void decode_half(Half kind, const uint16_t* src, float* out, int64_t n, float weight, bool add, int threads);

}  // namespace gradwire
