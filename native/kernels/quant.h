// int8, int4 and int2 with one scale per block and error feedback (block-wise absmax quantisation, as in QSGD with an
// infinity norm): q = round((g + r) / scale), scale = max|g + r| / levels, r = (g + r) - q * scale.
//
// int2 has the codes -2..1 and a signed scale: the block's peak, its element of largest magnitude (the positive one of
// two), is -2 times the scale. The side opposite to the peak saturates at one scale, so no residual is larger than one
// scale: half the peak. With gradients of at most G, residuals therefore never exceed G.
//
// A block that holds anything not finite gets scale NaN and q 0, decodes to NaN, and keeps its old residual.
// Blocks whose scale would be below the smallest normal float are sent as zeros and stay in the residual.
#pragma once
#include <cstdint>
#include <optional>

namespace gradwire {

constexpr int64_t kInt8Block = 256, kInt4Block = 64, kInt2Block = 64;

struct QuantJob {
  const float* g;
  float* r;  // null: no feedback
  int64_t n;
  std::optional<uint64_t> seed;  // none: round to nearest even; else stochastic rounding, unbiased
  int threads = 1;
};

// They return how many elements of g + r were not finite. int4 packs element 2i into the low nibble of byte i, int2
// packs element 4i + j into bits 2j and 2j + 1 of byte i; all in two's complement.
int64_t encode_int8(const QuantJob& job, int8_t* q, float* scales);
int64_t encode_int4(const QuantJob& job, uint8_t* q, float* scales);
int64_t encode_int2(const QuantJob& job, uint8_t* q, float* scales);

// out = weight * (q * scale), or out += weight * (q * scale).
void decode_int8(const int8_t* q, const float* scales, float* out, int64_t n, float weight, bool add, int threads);
void decode_int4(const uint8_t* q, const float* scales, float* out, int64_t n, float weight, bool add, int threads);
void decode_int2(const uint8_t* q, const float* scales, float* out, int64_t n, float weight, bool add, int threads);

}  // namespace gradwire
