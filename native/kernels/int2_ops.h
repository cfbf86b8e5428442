// The operations of one int2 block per instruction set; int2.cpp iterates over the blocks.
#pragma once
#include <cstdint>

#include "kernels/cpu.h"
#include "kernels/floats.h"
#include "kernels/noise.h"

namespace gradwire {

// The largest magnitudes of either sign, as bits; 0 where no element has the sign. At or above infinity's bits if
// anything is not finite.
struct Peaks {
  uint32_t positive, negative;

  bool finite() const { return positive < kInfinity && negative < kInfinity; }

  // The peak is -2 times the scale; 0 where that is below the smallest normal float.
  float scale() const {
    float scale = positive >= negative ? -0.5f * float_of(positive) : 0.5f * float_of(negative);
    return magnitude(scale) >= kSmallestNormal ? scale : 0.0f;
  }

  static constexpr uint32_t kSmallestNormal = 0x00800000u;
};

// As signed integers the bits of positive floats exceed those of negative ones; as unsigned integers it is the reverse.
inline Peaks peaks_of(uint32_t largest_signed, uint32_t largest_unsigned) {
  return {largest_signed, largest_unsigned > kMagnitude ? largest_unsigned & kMagnitude : 0};
}

struct Int2Rounding {
  bool stochastic;
  NoiseKey key;
  uint32_t lane;  // the block's first element within its run of noise
};

struct Int2Ops {
  // Writes the scale and the codes of up to 64 elements, and their residual. False, with nothing written, if any
  // element is not finite.
  bool (*encode)(const float* g, float* r, int64_t n, uint8_t* q, float* scale, const Int2Rounding& how);
  // Full blocks only: 16 bytes to 64 of the four values in `table`, which codes index.
  void (*look_up)(const uint8_t* in, const float* table, float* out, bool add);
};

extern const Int2Ops kInt2Scalar;
#if defined(GRADWIRE_X86)
extern const Int2Ops kInt2Avx2, kInt2Avx512;
#endif

}  // namespace gradwire
