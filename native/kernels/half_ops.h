// fp16 and bf16 for a range per instruction set; half.cpp chooses and threads them.
#pragma once
#include "kernels/cpu.h"
#include "kernels/floats.h"
#include "kernels/half.h"

namespace gradwire {

uint16_t to_half(Half kind, float x);
float from_half(Half kind, uint16_t h);

int64_t encode_half_scalar(Half kind, const float* g, float* r, uint16_t* out, int64_t n);
int64_t encode_half_avx2(Half kind, const float* g, float* r, uint16_t* out, int64_t n);
int64_t encode_half_avx512(Half kind, const float* g, float* r, uint16_t* out, int64_t n);

void decode_half_scalar(Half kind, const uint16_t* src, float* out, int64_t n, float weight, bool add);
void decode_half_avx2(Half kind, const uint16_t* src, float* out, int64_t n, float weight, bool add);
void decode_half_avx512(Half kind, const uint16_t* src, float* out, int64_t n, float weight, bool add);

}  // namespace gradwire
