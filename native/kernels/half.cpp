#include "kernels/half.h"

#include <atomic>

#include "kernels/half_ops.h"
#include "kernels/parallel.h"

namespace gradwire {

uint16_t to_half(Half kind, float x) {
  uint32_t sign = bits_of(x) >> 16 & 0x8000u;
  uint32_t a = magnitude(x);
  if (kind == Half::bf16) {
    if (a > kInfinity) return 0x7FC0;
    if (a == kInfinity) return static_cast<uint16_t>(sign | 0x7F80u);
    return static_cast<uint16_t>(sign | std::min(0x7F7Fu, (a + 0x7FFFu + (a >> 16 & 1u)) >> 16));
  }
  if (a > kInfinity) return 0x7E00;
  if (a == kInfinity) return static_cast<uint16_t>(sign | 0x7C00u);
  if (a >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7BFFu);  // 65520 and above would round to infinity
  // Below 2^-14 halves are multiples of 2^-24: adding 0.5 lets the adder round to that grid.
  if (a < 0x38800000u) return static_cast<uint16_t>(sign | (bits_of(float_of(a) + 0.5f) - 0x3F000000u));
  return static_cast<uint16_t>(sign | ((a - 0x38000000u + 0xFFFu + (a >> 13 & 1u)) >> 13));
}

float from_half(Half kind, uint16_t h) {
  if (kind == Half::bf16) return float_of(static_cast<uint32_t>(h) << 16);
  uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  uint32_t a = h & 0x7FFFu;
  if (a > 0x7C00u) return float_of(sign | 0x7FC00000u | (a & 0x3FFu) << 13);
  if (a == 0x7C00u) return float_of(sign | kInfinity);
  if (a < 0x400u) return float_of(sign | bits_of(static_cast<float>(a) * 0x1p-24f));
  return float_of(sign | ((a << 13) + 0x38000000u));
}

int64_t encode_half_scalar(Half kind, const float* g, float* r, uint16_t* out, int64_t n) {
  int64_t nonfinite = 0;
  for (int64_t i = 0; i < n; ++i) {
    float a = compensated(g, r, i);
    out[i] = to_half(kind, a);
    if (!is_finite(a))
      ++nonfinite;
    else if (r)
      r[i] = a - from_half(kind, out[i]);
  }
  return nonfinite;
}

void decode_half_scalar(Half kind, const uint16_t* src, float* out, int64_t n, float weight, bool add) {
  for (int64_t i = 0; i < n; ++i) {
    float x = weight * from_half(kind, src[i]);
    out[i] = add ? out[i] + x : x;
  }
}

int64_t encode_half(Half kind, const float* g, float* r, uint16_t* out, int64_t n, int threads) {
  auto encode = encode_half_scalar;
#if defined(GRADWIRE_X86)
  if (best_isa() == Isa::avx2) encode = encode_half_avx2;
  if (best_isa() == Isa::avx512) encode = encode_half_avx512;
#endif
  std::atomic<int64_t> nonfinite = 0;
  in_parallel(useful_threads(threads, n), n, 64, [&](int, int64_t begin, int64_t end) {
    nonfinite += encode(kind, g + begin, r ? r + begin : nullptr, out + begin, end - begin);
  });
  return nonfinite;
}

void decode_half(Half kind, const uint16_t* src, float* out, int64_t n, float weight, bool add, int threads) {
  auto decode = decode_half_scalar;
#if defined(GRADWIRE_X86)
  if (best_isa() == Isa::avx2) decode = decode_half_avx2;
  if (best_isa() == Isa::avx512) decode = decode_half_avx512;
#endif
  in_parallel(useful_threads(threads, n), n, 64, [&](int, int64_t begin, int64_t end) {
    decode(kind, src + begin, out + begin, end - begin, weight, add);
  });
}

}  // namespace gradwire
