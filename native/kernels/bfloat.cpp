#include "kernels/bfloat.h"

#include <algorithm>

#include "kernels/cpu.h"
#include "kernels/floats.h"
#include "kernels/half_ops.h"
#include "kernels/noise.h"
#include "kernels/noise_x86.h"

namespace gradwire {
namespace {

constexpr int64_t kRun = 256;  // elements of one noise key
constexpr uint32_t kLargest = 0x7F7Fu;

// A part of one run, from `lane` on.
void round_scalar(const float* in, uint16_t* out, int64_t n, NoiseKey key, uint32_t lane) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t up = noise_bits(key, lane + static_cast<uint32_t>(i)) >> 16, a = magnitude(in[i]);
    uint32_t half = std::min(kLargest, (a + up) >> 16) | (bits_of(in[i]) >> 16 & 0x8000u);
    out[i] = is_finite(in[i]) ? static_cast<uint16_t>(half) : to_half(Half::bf16, in[i]);
  }
}

#if defined(GRADWIRE_X86)
GRADWIRE_AVX2 void round_avx2(const float* in, uint16_t* out, int64_t n, NoiseKey key, uint32_t lane) {
  const __m256i mask = _mm256_set1_epi32(kMagnitude), last = _mm256_set1_epi32(kInfinity - 1);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256i x = _mm256_castps_si256(_mm256_loadu_ps(in + i)), a = _mm256_and_si256(x, mask);
    __m256i wild = _mm256_cmpgt_epi32(a, last);
    if (__builtin_expect(!_mm256_testz_si256(wild, wild), 0)) {
      round_scalar(in + i, out + i, 8, key, lane + static_cast<uint32_t>(i));
      continue;
    }
    __m256i up = _mm256_srli_epi32(noise_bits8(key, lane + static_cast<uint32_t>(i)), 16);
    __m256i h = _mm256_min_epi32(_mm256_srli_epi32(_mm256_add_epi32(a, up), 16), _mm256_set1_epi32(kLargest));
    h = _mm256_or_si256(h, _mm256_slli_epi32(_mm256_srli_epi32(x, 31), 15));
    h = _mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_castsi256_si128(h));
  }
  round_scalar(in + i, out + i, n - i, key, lane + static_cast<uint32_t>(i));
}

GRADWIRE_AVX512 void round_avx512(const float* in, uint16_t* out, int64_t n, NoiseKey key, uint32_t lane) {
  const __m512i mask = _mm512_set1_epi32(kMagnitude), infinity = _mm512_set1_epi32(kInfinity);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m512i x = _mm512_castps_si512(_mm512_loadu_ps(in + i)), a = _mm512_and_si512(x, mask);
    if (__builtin_expect(_mm512_cmpge_epi32_mask(a, infinity) != 0, 0)) {
      round_scalar(in + i, out + i, 16, key, lane + static_cast<uint32_t>(i));
      continue;
    }
    __m512i up = _mm512_srli_epi32(noise_bits16(key, lane + static_cast<uint32_t>(i)), 16);
    __m512i h = _mm512_min_epi32(_mm512_srli_epi32(_mm512_add_epi32(a, up), 16), _mm512_set1_epi32(kLargest));
    h = _mm512_or_si512(h, _mm512_slli_epi32(_mm512_srli_epi32(x, 31), 15));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtepi32_epi16(h));
  }
  round_scalar(in + i, out + i, n - i, key, lane + static_cast<uint32_t>(i));
}
#endif

}  // namespace

void round_to_bfloat(const float* in, uint16_t* out, int64_t n, uint64_t seed) {
  auto round = round_scalar;
#if defined(GRADWIRE_X86)
  if (best_isa() == Isa::avx2) round = round_avx2;
  if (best_isa() == Isa::avx512) round = round_avx512;
#endif
  for (int64_t i = 0; i < n; i += kRun)
    round(in + i, out + i, std::min(kRun, n - i), noise_key(seed, static_cast<uint64_t>(i / kRun)), 0);
}

}  // namespace gradwire
