// The operations of one block per instruction set; quant.cpp iterates over the blocks.
#pragma once
#include "kernels/cpu.h"
#include "kernels/floats.h"
#include "kernels/noise.h"

namespace gradwire {

struct Rounding {
  float inverse, scale, levels;
  bool stochastic;
  NoiseKey key;
  uint32_t lane;  // the block's first element within its run of noise
};

struct QuantOps {
  // The largest magnitude of g + r, as bits: at or above infinity's if anything is not finite.
  uint32_t (*largest)(const float* g, const float* r, int64_t n);
  void (*quantise)(const float* g, float* r, int8_t* q, int64_t n, const Rounding& how);
  void (*dequantise)(const int8_t* q, float* out, int64_t n, float scale, float weight, bool add);
  // Full int4 blocks only: 64 values to 32 bytes and back.
  void (*pack)(const int8_t* q, uint8_t* out);
  void (*unpack)(const uint8_t* in, int8_t* q);
};

extern const QuantOps kQuantScalar;
#if defined(GRADWIRE_X86)
extern const QuantOps kQuantAvx2, kQuantAvx512;
#endif

}  // namespace gradwire
