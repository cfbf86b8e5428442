// float32 to bfloat16, up or down at random, so that the mean over roundings is the value itself: for numbers to which
// much smaller ones are added again and again. Rounding to the nearest would drop each of those for ever.
#pragma once
#include <cstdint>

namespace gradwire {

// The chance to go away from zero is the dropped 16 bits over 2^16, exactly. Finite values saturate at the largest
// finite one; what bfloat16 can hold is unchanged. NaN becomes one quiet NaN, infinity stays.
void round_to_bfloat(const float* in, uint16_t* out, int64_t n, uint64_t seed);

}  // namespace gradwire
