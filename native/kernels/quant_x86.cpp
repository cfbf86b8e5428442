#include "kernels/noise_x86.h"
#include "kernels/quant_ops.h"

#if defined(GRADWIRE_X86)
#include <immintrin.h>

namespace gradwire {
namespace {

template <bool Feedback>
GRADWIRE_AVX2 inline __m256 load8(const float* g, const float* r, int64_t i) {
  __m256 a = _mm256_loadu_ps(g + i);
  if constexpr (Feedback) a = _mm256_add_ps(a, _mm256_loadu_ps(r + i));
  return a;
}

template <bool Feedback>
GRADWIRE_AVX2 uint32_t largest8(const float* g, const float* r, int64_t n) {
  const __m256i mask = _mm256_set1_epi32(kMagnitude);
  __m256i m0 = _mm256_setzero_si256(), m1 = m0;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    m0 = _mm256_max_epi32(m0, _mm256_and_si256(_mm256_castps_si256(load8<Feedback>(g, r, i)), mask));
    m1 = _mm256_max_epi32(m1, _mm256_and_si256(_mm256_castps_si256(load8<Feedback>(g, r, i + 8)), mask));
  }
  alignas(32) uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), _mm256_max_epi32(m0, m1));
  uint32_t most = kQuantScalar.largest(g + i, Feedback ? r + i : nullptr, n - i);
  for (uint32_t lane : lanes) most = lane > most ? lane : most;
  return most;
}

template <bool Feedback, bool Stochastic>
GRADWIRE_AVX2 void quantise8(const float* g, float* r, int8_t* q, int64_t n, const Rounding& how) {
  const __m256 inverse = _mm256_set1_ps(how.inverse), scale = _mm256_set1_ps(how.scale);
  const __m256 top = _mm256_set1_ps(how.levels), low = _mm256_set1_ps(-how.levels), one = _mm256_set1_ps(1.0f);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 a = load8<Feedback>(g, r, i);
    __m256 t = _mm256_mul_ps(a, inverse);
    __m256 whole;
    if constexpr (Stochastic) {
      whole = _mm256_floor_ps(t);
      __m256 up =
          _mm256_cmp_ps(noise8(how.key, how.lane + static_cast<uint32_t>(i)), _mm256_sub_ps(t, whole), _CMP_LT_OQ);
      whole = _mm256_add_ps(whole, _mm256_and_ps(up, one));
    } else {
      whole = _mm256_round_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    whole = _mm256_min_ps(_mm256_max_ps(whole, low), top);
    __m256i wide = _mm256_cvtps_epi32(whole);
    __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(q + i), _mm_packs_epi16(half, half));
    if constexpr (Feedback) _mm256_storeu_ps(r + i, _mm256_sub_ps(a, _mm256_mul_ps(whole, scale)));
  }
  Rounding rest = how;
  rest.lane += static_cast<uint32_t>(i);
  kQuantScalar.quantise(g + i, Feedback ? r + i : nullptr, q + i, n - i, rest);
}

template <bool Add>
GRADWIRE_AVX2 void dequantise8(const int8_t* q, float* out, int64_t n, float scale, float weight) {
  const __m256 s = _mm256_set1_ps(scale), w = _mm256_set1_ps(weight);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q + i)));
    __m256 x = _mm256_mul_ps(w, _mm256_mul_ps(_mm256_cvtepi32_ps(wide), s));
    if constexpr (Add) x = _mm256_add_ps(_mm256_loadu_ps(out + i), x);
    _mm256_storeu_ps(out + i, x);
  }
  kQuantScalar.dequantise(q + i, out + i, n - i, scale, weight, Add);
}

// Each pair of bytes (low, high) times (1, 16) sums to one packed byte.
GRADWIRE_AVX2 void pack64(const int8_t* q, uint8_t* out) {
  const __m256i nibble = _mm256_set1_epi8(15), weights = _mm256_set1_epi16(0x1001);
  const __m256i* in = reinterpret_cast<const __m256i*>(q);
  __m256i a = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_loadu_si256(in), nibble), weights);
  __m256i b = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_loadu_si256(in + 1), nibble), weights);
  __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xD8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
}

GRADWIRE_AVX2 inline __m256i spread(__m128i bytes) {
  const __m256i nibble = _mm256_set1_epi8(15), sign = _mm256_set1_epi8(8);
  __m256i x = _mm256_cvtepu8_epi16(bytes);
  x = _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi16(x, 4)), nibble);
  return _mm256_sub_epi8(_mm256_xor_si256(x, sign), sign);
}

GRADWIRE_AVX2 void unpack64(const uint8_t* in, int8_t* q) {
  const __m128i* bytes = reinterpret_cast<const __m128i*>(in);
  __m256i* out = reinterpret_cast<__m256i*>(q);
  _mm256_storeu_si256(out, spread(_mm_loadu_si128(bytes)));
  _mm256_storeu_si256(out + 1, spread(_mm_loadu_si128(bytes + 1)));
}

inline __mmask16 first(int64_t n) { return static_cast<__mmask16>(n >= 16 ? 0xFFFF : (1 << n) - 1); }

template <bool Feedback>
GRADWIRE_AVX512 inline __m512 load16(const float* g, const float* r, int64_t i, __mmask16 m) {
  __m512 a = _mm512_maskz_loadu_ps(m, g + i);
  if constexpr (Feedback) a = _mm512_add_ps(a, _mm512_maskz_loadu_ps(m, r + i));
  return a;
}

template <bool Feedback>
GRADWIRE_AVX512 uint32_t largest16(const float* g, const float* r, int64_t n) {
  const __m512i mask = _mm512_set1_epi32(kMagnitude);
  __m512i m0 = _mm512_setzero_si512(), m1 = m0;
  for (int64_t i = 0; i < n; i += 32) {
    for (int line = 0; line < 2; ++line) {
      __builtin_prefetch(g + i + 16 * line + kAhead);
      if constexpr (Feedback) __builtin_prefetch(r + i + 16 * line + kAhead, 1);
    }
    m0 = _mm512_max_epi32(m0, _mm512_and_si512(_mm512_castps_si512(load16<Feedback>(g, r, i, first(n - i))), mask));
    if (i + 16 >= n) break;
    __m512 b = load16<Feedback>(g, r, i + 16, first(n - i - 16));
    m1 = _mm512_max_epi32(m1, _mm512_and_si512(_mm512_castps_si512(b), mask));
  }
  return static_cast<uint32_t>(_mm512_reduce_max_epi32(_mm512_max_epi32(m0, m1)));
}

template <bool Feedback, bool Stochastic>
GRADWIRE_AVX512 void quantise16(const float* g, float* r, int8_t* q, int64_t n, const Rounding& how) {
  const __m512 inverse = _mm512_set1_ps(how.inverse), scale = _mm512_set1_ps(how.scale);
  const __m512 top = _mm512_set1_ps(how.levels), low = _mm512_set1_ps(-how.levels), one = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < n; i += 16) {
    __mmask16 m = first(n - i);
    __m512 a = load16<Feedback>(g, r, i, m);
    __m512 t = _mm512_mul_ps(a, inverse);
    __m512 whole;
    if constexpr (Stochastic) {
      whole = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
      __m512 u = noise16(how.key, how.lane + static_cast<uint32_t>(i));
      __mmask16 up = _mm512_cmp_ps_mask(u, _mm512_sub_ps(t, whole), _CMP_LT_OQ);
      whole = _mm512_add_ps(whole, _mm512_maskz_mov_ps(up, one));  // adds 0 elsewhere, so that -0 becomes 0 in all
    } else {
      whole = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    whole = _mm512_min_ps(_mm512_max_ps(whole, low), top);
    _mm512_mask_cvtepi32_storeu_epi8(q + i, m, _mm512_cvtps_epi32(whole));
    if constexpr (Feedback) _mm512_mask_storeu_ps(r + i, m, _mm512_sub_ps(a, _mm512_mul_ps(whole, scale)));
  }
}

template <bool Add>
GRADWIRE_AVX512 void dequantise16(const int8_t* q, float* out, int64_t n, float scale, float weight) {
  const __m512 s = _mm512_set1_ps(scale), w = _mm512_set1_ps(weight);
  for (int64_t i = 0; i < n; i += 16) {
    __mmask16 m = first(n - i);
    __m512 x = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(m, q + i)));
    x = _mm512_mul_ps(w, _mm512_mul_ps(x, s));
    if constexpr (Add) x = _mm512_add_ps(_mm512_maskz_loadu_ps(m, out + i), x);
    _mm512_mask_storeu_ps(out + i, m, x);
  }
}

uint32_t largest_avx2(const float* g, const float* r, int64_t n) {
  return r ? largest8<true>(g, r, n) : largest8<false>(g, r, n);
}

uint32_t largest_avx512(const float* g, const float* r, int64_t n) {
  return r ? largest16<true>(g, r, n) : largest16<false>(g, r, n);
}

void quantise_avx2(const float* g, float* r, int8_t* q, int64_t n, const Rounding& how) {
  if (how.stochastic) return r ? quantise8<true, true>(g, r, q, n, how) : quantise8<false, true>(g, r, q, n, how);
  return r ? quantise8<true, false>(g, r, q, n, how) : quantise8<false, false>(g, r, q, n, how);
}

void quantise_avx512(const float* g, float* r, int8_t* q, int64_t n, const Rounding& how) {
  if (how.stochastic) return r ? quantise16<true, true>(g, r, q, n, how) : quantise16<false, true>(g, r, q, n, how);
  return r ? quantise16<true, false>(g, r, q, n, how) : quantise16<false, false>(g, r, q, n, how);
}

void dequantise_avx2(const int8_t* q, float* out, int64_t n, float scale, float weight, bool add) {
  add ? dequantise8<true>(q, out, n, scale, weight) : dequantise8<false>(q, out, n, scale, weight);
}

void dequantise_avx512(const int8_t* q, float* out, int64_t n, float scale, float weight, bool add) {
  add ? dequantise16<true>(q, out, n, scale, weight) : dequantise16<false>(q, out, n, scale, weight);
}

}  // namespace

const QuantOps kQuantAvx2 = {largest_avx2, quantise_avx2, dequantise_avx2, pack64, unpack64};
const QuantOps kQuantAvx512 = {largest_avx512, quantise_avx512, dequantise_avx512, pack64, unpack64};

}  // namespace gradwire
#endif
