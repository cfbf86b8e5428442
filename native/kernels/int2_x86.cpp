#include "kernels/int2_ops.h"
#include "kernels/noise_x86.h"

#if defined(GRADWIRE_X86)
#include <immintrin.h>

#include <cstring>

namespace gradwire {
namespace {

GRADWIRE_AVX2 inline Peaks peaks8(__m256i up, __m256i down) {
  __m128i a = _mm_max_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
  __m128i b = _mm_max_epu32(_mm256_castsi256_si128(down), _mm256_extracti128_si256(down, 1));
  a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4E));
  b = _mm_max_epu32(b, _mm_shuffle_epi32(b, 0x4E));
  a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0xB1));
  b = _mm_max_epu32(b, _mm_shuffle_epi32(b, 0xB1));
  return peaks_of(static_cast<uint32_t>(_mm_cvtsi128_si32(a)), static_cast<uint32_t>(_mm_cvtsi128_si32(b)));
}

// Pairs of codes times (1, 4) sum to a nibble, pairs of nibbles times (1, 16) to a byte in 32 bits.
GRADWIRE_AVX2 inline __m256i bytes_of(__m256i codes) {
  codes = _mm256_maddubs_epi16(_mm256_and_si256(codes, _mm256_set1_epi8(3)), _mm256_set1_epi16(0x0401));
  return _mm256_madd_epi16(codes, _mm256_set1_epi32(0x00100001));
}

template <bool Stochastic>
GRADWIRE_AVX2 inline __m256 codes8(__m256 t, const Int2Rounding& how, int i) {
  __m256 whole;
  if constexpr (Stochastic) {
    whole = _mm256_floor_ps(t);
    __m256 u = noise8(how.key, how.lane + static_cast<uint32_t>(i));
    __m256 up = _mm256_cmp_ps(u, _mm256_sub_ps(t, whole), _CMP_LT_OQ);
    whole = _mm256_add_ps(whole, _mm256_and_ps(up, _mm256_set1_ps(1.0f)));
  } else {
    whole = _mm256_round_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  return _mm256_min_ps(_mm256_max_ps(whole, _mm256_set1_ps(-2.0f)), _mm256_set1_ps(1.0f));
}

// The block stays in eight registers from the search for its peaks to its residual.
template <bool Feedback, bool Stochastic>
GRADWIRE_AVX2 bool encode8(const float* g, float* r, uint8_t* q, float* scale, const Int2Rounding& how) {
  __m256 a[8];
  __m256i up = _mm256_setzero_si256(), down = up;
#pragma GCC unroll 8
  for (int k = 0; k < 8; ++k) {
    a[k] = _mm256_loadu_ps(g + 8 * k);
    if constexpr (Feedback) a[k] = _mm256_add_ps(a[k], _mm256_loadu_ps(r + 8 * k));
    up = _mm256_max_epi32(up, _mm256_castps_si256(a[k]));
    down = _mm256_max_epu32(down, _mm256_castps_si256(a[k]));
  }
  const Peaks found = peaks8(up, down);
  if (!found.finite()) return false;
  const float s = *scale = found.scale();
  const __m256 factor = _mm256_set1_ps(s), inverse = _mm256_set1_ps(s != 0.0f ? 1.0f / s : 0.0f);
  __m256i word[4];  // codes of 16 elements each
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    __m256 low = codes8<Stochastic>(_mm256_mul_ps(a[2 * k], inverse), how, 16 * k);
    __m256 high = codes8<Stochastic>(_mm256_mul_ps(a[2 * k + 1], inverse), how, 16 * k + 8);
    word[k] = _mm256_packs_epi32(_mm256_cvtps_epi32(low), _mm256_cvtps_epi32(high));
    if constexpr (Feedback) {
      _mm256_storeu_ps(r + 16 * k, _mm256_sub_ps(a[2 * k], _mm256_mul_ps(low, factor)));
      _mm256_storeu_ps(r + 16 * k + 8, _mm256_sub_ps(a[2 * k + 1], _mm256_mul_ps(high, factor)));
    }
  }
  // The packing instructions work on halves: the lower one ends with the even bytes, the upper one with the odd ones.
  __m256i first = bytes_of(_mm256_packs_epi16(word[0], word[1]));
  __m256i second = bytes_of(_mm256_packs_epi16(word[2], word[3]));
  __m256i all = _mm256_packs_epi32(first, second);
  __m128i odd = _mm_slli_epi16(_mm256_extracti128_si256(all, 1), 8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm_or_si128(_mm256_castsi256_si128(all), odd));
  return true;
}

inline int four_bytes(const uint8_t* in) {
  int word;
  std::memcpy(&word, in, sizeof word);
  return word;
}

// The permutation reads the two low bits of every lane, so the codes above need no mask.
template <bool Add>
GRADWIRE_AVX2 void look_up8(const uint8_t* in, const float* table, float* out) {
  const __m256 values = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(table));
  const __m256i low = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14), high = _mm256_add_epi32(low, _mm256_set1_epi32(16));
  for (int64_t i = 0; i < 64; i += 16) {
    __m256i codes = _mm256_set1_epi32(four_bytes(in + i / 4));
    __m256 a = _mm256_permutevar_ps(values, _mm256_srlv_epi32(codes, low));
    __m256 b = _mm256_permutevar_ps(values, _mm256_srlv_epi32(codes, high));
    if constexpr (Add) {
      a = _mm256_add_ps(_mm256_loadu_ps(out + i), a);
      b = _mm256_add_ps(_mm256_loadu_ps(out + i + 8), b);
    }
    _mm256_storeu_ps(out + i, a);
    _mm256_storeu_ps(out + i + 8, b);
  }
}

template <bool Stochastic>
GRADWIRE_AVX512 inline __m512 codes16(__m512 t, const Int2Rounding& how, int i) {
  __m512 whole;
  if constexpr (Stochastic) {
    whole = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 u = noise16(how.key, how.lane + static_cast<uint32_t>(i));
    __mmask16 up = _mm512_cmp_ps_mask(u, _mm512_sub_ps(t, whole), _CMP_LT_OQ);
    whole = _mm512_add_ps(whole, _mm512_maskz_mov_ps(up, _mm512_set1_ps(1.0f)));
  } else {
    whole = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  return _mm512_min_ps(_mm512_max_ps(whole, _mm512_set1_ps(-2.0f)), _mm512_set1_ps(1.0f));
}

template <bool Feedback, bool Stochastic>
GRADWIRE_AVX512 bool encode16(const float* g, float* r, uint8_t* q, float* scale, const Int2Rounding& how) {
  __m512 a[4];
  __m512i up = _mm512_setzero_si512(), down = up;
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    __builtin_prefetch(g + 16 * k + kAhead);
    if constexpr (Feedback) __builtin_prefetch(r + 16 * k + kAhead, 1);
    a[k] = _mm512_loadu_ps(g + 16 * k);
    if constexpr (Feedback) a[k] = _mm512_add_ps(a[k], _mm512_loadu_ps(r + 16 * k));
    up = _mm512_max_epi32(up, _mm512_castps_si512(a[k]));
    down = _mm512_max_epu32(down, _mm512_castps_si512(a[k]));
  }
  const Peaks found = peaks_of(static_cast<uint32_t>(_mm512_reduce_max_epi32(up)),
                               static_cast<uint32_t>(_mm512_reduce_max_epu32(down)));
  if (!found.finite()) return false;
  const float s = *scale = found.scale();
  const __m512 factor = _mm512_set1_ps(s), inverse = _mm512_set1_ps(s != 0.0f ? 1.0f / s : 0.0f);
  __m128i codes[4];
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    __m512 whole = codes16<Stochastic>(_mm512_mul_ps(a[k], inverse), how, 16 * k);
    codes[k] = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(whole));
    if constexpr (Feedback) _mm512_storeu_ps(r + 16 * k, _mm512_sub_ps(a[k], _mm512_mul_ps(whole, factor)));
  }
  __m128i low = _mm256_cvtepi32_epi8(bytes_of(_mm256_set_m128i(codes[1], codes[0])));
  __m128i high = _mm256_cvtepi32_epi8(bytes_of(_mm256_set_m128i(codes[3], codes[2])));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm_unpacklo_epi64(low, high));
  return true;
}

template <bool Add>
GRADWIRE_AVX512 void look_up16(const uint8_t* in, const float* table, float* out) {
  const __m512 values = _mm512_broadcast_f32x4(_mm_loadu_ps(table));
  const __m512i shifts = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  for (int64_t i = 0; i < 64; i += 16) {
    __m512i codes = _mm512_set1_epi32(four_bytes(in + i / 4));
    __m512 x = _mm512_permutevar_ps(values, _mm512_srlv_epi32(codes, shifts));
    if constexpr (Add) x = _mm512_add_ps(_mm512_loadu_ps(out + i), x);
    _mm512_storeu_ps(out + i, x);
  }
}

bool encode_avx2(const float* g, float* r, int64_t n, uint8_t* q, float* scale, const Int2Rounding& how) {
  if (n < 64) return kInt2Scalar.encode(g, r, n, q, scale, how);
  if (how.stochastic) return r ? encode8<true, true>(g, r, q, scale, how) : encode8<false, true>(g, r, q, scale, how);
  return r ? encode8<true, false>(g, r, q, scale, how) : encode8<false, false>(g, r, q, scale, how);
}

bool encode_avx512(const float* g, float* r, int64_t n, uint8_t* q, float* scale, const Int2Rounding& how) {
  if (n < 64) return kInt2Scalar.encode(g, r, n, q, scale, how);
  if (how.stochastic) return r ? encode16<true, true>(g, r, q, scale, how) : encode16<false, true>(g, r, q, scale, how);
  return r ? encode16<true, false>(g, r, q, scale, how) : encode16<false, false>(g, r, q, scale, how);
}

void look_up_avx2(const uint8_t* in, const float* table, float* out, bool add) {
  add ? look_up8<true>(in, table, out) : look_up8<false>(in, table, out);
}

void look_up_avx512(const uint8_t* in, const float* table, float* out, bool add) {
  add ? look_up16<true>(in, table, out) : look_up16<false>(in, table, out);
}

}  // namespace

const Int2Ops kInt2Avx2 = {encode_avx2, look_up_avx2};
const Int2Ops kInt2Avx512 = {encode_avx512, look_up_avx512};

}  // namespace gradwire
#endif
