// Vectors of finite values are converted here; a vector with any other value uses the scalar reference.
#include "kernels/half_ops.h"

#if defined(GRADWIRE_X86)
#include <immintrin.h>

namespace gradwire {
namespace {

constexpr float kLargestHalf = 65504.0f;

template <Half K>
GRADWIRE_AVX2 inline __m128i narrow8(__m256 a) {
  if constexpr (K == Half::fp16) {
    const __m256 top = _mm256_set1_ps(kLargestHalf), low = _mm256_set1_ps(-kLargestHalf);
    return _mm256_cvtps_ph(_mm256_min_ps(_mm256_max_ps(a, low), top), _MM_FROUND_TO_NEAREST_INT);
  } else {
    __m256i x = _mm256_castps_si256(a);
    __m256i m = _mm256_and_si256(x, _mm256_set1_epi32(kMagnitude));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(m, 16), _mm256_set1_epi32(1));
    __m256i h = _mm256_srli_epi32(_mm256_add_epi32(m, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
    h = _mm256_min_epi32(h, _mm256_set1_epi32(0x7F7F));
    h = _mm256_or_si256(h, _mm256_slli_epi32(_mm256_srli_epi32(x, 31), 15));
    h = _mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08);
    return _mm256_castsi256_si128(h);
  }
}

template <Half K>
GRADWIRE_AVX2 inline __m256 widen8(__m128i h) {
  if constexpr (K == Half::fp16) return _mm256_cvtph_ps(h);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

template <Half K, bool Feedback>
GRADWIRE_AVX2 int64_t encode8(const float* g, float* r, uint16_t* out, int64_t n) {
  const __m256i mask = _mm256_set1_epi32(kMagnitude), last = _mm256_set1_epi32(kInfinity - 1);
  int64_t i = 0, nonfinite = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 a = _mm256_loadu_ps(g + i);
    if constexpr (Feedback) a = _mm256_add_ps(a, _mm256_loadu_ps(r + i));
    __m256i wild = _mm256_cmpgt_epi32(_mm256_and_si256(_mm256_castps_si256(a), mask), last);
    if (__builtin_expect(!_mm256_testz_si256(wild, wild), 0)) {
      nonfinite += encode_half_scalar(K, g + i, Feedback ? r + i : nullptr, out + i, 8);
      continue;
    }
    __m128i h = narrow8<K>(a);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), h);
    if constexpr (Feedback) _mm256_storeu_ps(r + i, _mm256_sub_ps(a, widen8<K>(h)));
  }
  return nonfinite + encode_half_scalar(K, g + i, Feedback ? r + i : nullptr, out + i, n - i);
}

template <Half K, bool Add>
GRADWIRE_AVX2 void decode8(const uint16_t* src, float* out, int64_t n, float weight) {
  const __m256 w = _mm256_set1_ps(weight);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 x = _mm256_mul_ps(w, widen8<K>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i))));
    if constexpr (Add) x = _mm256_add_ps(_mm256_loadu_ps(out + i), x);
    _mm256_storeu_ps(out + i, x);
  }
  decode_half_scalar(K, src + i, out + i, n - i, weight, Add);
}

template <Half K>
GRADWIRE_AVX512 inline __m256i narrow16(__m512 a) {
  if constexpr (K == Half::fp16) {
    const __m512 top = _mm512_set1_ps(kLargestHalf), low = _mm512_set1_ps(-kLargestHalf);
    return _mm512_cvtps_ph(_mm512_min_ps(_mm512_max_ps(a, low), top), _MM_FROUND_TO_NEAREST_INT);
  } else {
    __m512i x = _mm512_castps_si512(a);
    __m512i m = _mm512_and_si512(x, _mm512_set1_epi32(kMagnitude));
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(m, 16), _mm512_set1_epi32(1));
    __m512i h = _mm512_srli_epi32(_mm512_add_epi32(m, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))), 16);
    h = _mm512_min_epi32(h, _mm512_set1_epi32(0x7F7F));
    return _mm512_cvtepi32_epi16(_mm512_or_si512(h, _mm512_slli_epi32(_mm512_srli_epi32(x, 31), 15)));
  }
}

template <Half K>
GRADWIRE_AVX512 inline __m512 widen16(__m256i h) {
  if constexpr (K == Half::fp16) return _mm512_cvtph_ps(h);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

template <Half K, bool Feedback>
GRADWIRE_AVX512 int64_t encode16(const float* g, float* r, uint16_t* out, int64_t n) {
  const __m512i mask = _mm512_set1_epi32(kMagnitude), infinity = _mm512_set1_epi32(kInfinity);
  int64_t i = 0, nonfinite = 0;
  for (; i + 16 <= n; i += 16) {
    __m512 a = _mm512_loadu_ps(g + i);
    if constexpr (Feedback) a = _mm512_add_ps(a, _mm512_loadu_ps(r + i));
    if (__builtin_expect(_mm512_cmpge_epi32_mask(_mm512_and_si512(_mm512_castps_si512(a), mask), infinity), 0)) {
      nonfinite += encode_half_scalar(K, g + i, Feedback ? r + i : nullptr, out + i, 16);
      continue;
    }
    __m256i h = narrow16<K>(a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), h);
    if constexpr (Feedback) _mm512_storeu_ps(r + i, _mm512_sub_ps(a, widen16<K>(h)));
  }
  return nonfinite + encode_half_scalar(K, g + i, Feedback ? r + i : nullptr, out + i, n - i);
}

template <Half K, bool Add>
GRADWIRE_AVX512 void decode16(const uint16_t* src, float* out, int64_t n, float weight) {
  const __m512 w = _mm512_set1_ps(weight);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m512 x = _mm512_mul_ps(w, widen16<K>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i))));
    if constexpr (Add) x = _mm512_add_ps(_mm512_loadu_ps(out + i), x);
    _mm512_storeu_ps(out + i, x);
  }
  decode_half_scalar(K, src + i, out + i, n - i, weight, Add);
}

}  // namespace

int64_t encode_half_avx2(Half kind, const float* g, float* r, uint16_t* out, int64_t n) {
  if (kind == Half::fp16) return r ? encode8<Half::fp16, true>(g, r, out, n) : encode8<Half::fp16, false>(g, r, out, n);
  return r ? encode8<Half::bf16, true>(g, r, out, n) : encode8<Half::bf16, false>(g, r, out, n);
}

int64_t encode_half_avx512(Half kind, const float* g, float* r, uint16_t* out, int64_t n) {
  if (kind == Half::fp16)
    return r ? encode16<Half::fp16, true>(g, r, out, n) : encode16<Half::fp16, false>(g, r, out, n);
  return r ? encode16<Half::bf16, true>(g, r, out, n) : encode16<Half::bf16, false>(g, r, out, n);
}

void decode_half_avx2(Half kind, const uint16_t* src, float* out, int64_t n, float weight, bool add) {
  if (kind == Half::fp16)
    return add ? decode8<Half::fp16, true>(src, out, n, weight) : decode8<Half::fp16, false>(src, out, n, weight);
  return add ? decode8<Half::bf16, true>(src, out, n, weight) : decode8<Half::bf16, false>(src, out, n, weight);
}

void decode_half_avx512(Half kind, const uint16_t* src, float* out, int64_t n, float weight, bool add) {
  if (kind == Half::fp16)
    return add ? decode16<Half::fp16, true>(src, out, n, weight) : decode16<Half::fp16, false>(src, out, n, weight);
  return add ? decode16<Half::bf16, true>(src, out, n, weight) : decode16<Half::bf16, false>(src, out, n, weight);
}

}  // namespace gradwire
#endif
