// Four vectors at a time, one test for rare cases (not finite, capacity reached), then a branch per vector around the
// compressed stores: measured at 0.99x of plain r += g at 1 % and 11 M elements; storing without that branch gives
// 0.88x, one vector at a time 0.85x.
#include "kernels/select_ops.h"

#if defined(GRADWIRE_X86)
#include <immintrin.h>

#include <array>
#include <bit>

namespace gradwire {
namespace {

// For each 8-bit mask, the positions of its set bits first, one byte each: AVX2 has no compress.
constexpr std::array<uint64_t, 256> compress_table() {
  std::array<uint64_t, 256> table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    int place = 0;
    for (unsigned lane = 0; lane < 8; ++lane)
      if (mask >> lane & 1) table[mask] |= static_cast<uint64_t>(lane) << (8 * place++);
  }
  return table;
}
constexpr auto kCompress = compress_table();

Selected append_scalar(const Selected& so_far, const Gradient& in, int64_t begin, int64_t end, uint32_t limit,
                       const Pairs& out) {
  Selected more = select_scalar(in, begin, end, limit,
                                {out.indices + so_far.count, out.values + so_far.count, out.capacity - so_far.count});
  return {so_far.count + more.count, so_far.nonfinite + more.nonfinite};
}

template <bool Feedback>
GRADWIRE_AVX2 Selected select8(const Gradient& in, int64_t begin, int64_t end, uint32_t limit_bits, const Pairs& out) {
  const __m256i mask = _mm256_set1_epi32(kMagnitude), last_finite = _mm256_set1_epi32(kInfinity - 1);
  const __m256i iota = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  // a >= limit as a > limit - 1; magnitudes and -1 compare as signed integers.
  __m256i below = _mm256_set1_epi32(static_cast<int>(limit_bits) - 1);
  Selected found;
  int64_t i = begin;
  for (; i + 32 <= end; i += 32) {
    __m256 a[4];
    __m256i m[4];
    for (int j = 0; j < 4; ++j) {
      __builtin_prefetch(in.g + i + 8 * j + kAhead);
      if constexpr (Feedback) __builtin_prefetch(in.r + i + 8 * j + kAhead, 1);
      a[j] = _mm256_loadu_ps(in.g + i + 8 * j);
      if constexpr (Feedback) a[j] = _mm256_add_ps(a[j], _mm256_loadu_ps(in.r + i + 8 * j));
      m[j] = _mm256_and_si256(_mm256_castps_si256(a[j]), mask);
    }
    __m256i most = _mm256_max_epi32(_mm256_max_epi32(m[0], m[1]), _mm256_max_epi32(m[2], m[3]));
    __m256i wild = _mm256_cmpgt_epi32(most, last_finite);
    bool sane = _mm256_testz_si256(wild, wild);
    if (__builtin_expect(!sane || found.count + 32 > out.capacity, 0)) {
      if (found.count == out.capacity && sane) {
        for (int j = 0; Feedback && j < 4; ++j) _mm256_storeu_ps(in.r + i + 8 * j, a[j]);
      } else {
        found = append_scalar(found, in, i, i + 32, limit_bits, out);
      }
      continue;
    }
    for (int j = 0; j < 4; ++j) {
      __m256 hit = _mm256_castsi256_ps(_mm256_cmpgt_epi32(m[j], below));
      if constexpr (Feedback) _mm256_storeu_ps(in.r + i + 8 * j, _mm256_andnot_ps(hit, a[j]));
      auto bits = static_cast<unsigned>(_mm256_movemask_ps(hit));
      if (!bits) continue;
      __m256i order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(kCompress[bits])));
      __m256i places = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(i + 8 * j)), iota);
      _mm256_storeu_ps(out.values + found.count, _mm256_permutevar8x32_ps(a[j], order));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.indices + found.count),
                          _mm256_permutevar8x32_epi32(places, order));
      found.count += std::popcount(bits);
    }
  }
  return append_scalar(found, in, i, end, limit_bits, out);
}

template <bool Feedback>
GRADWIRE_AVX512 Selected select16(const Gradient& in, int64_t begin, int64_t end, uint32_t limit_bits,
                                  const Pairs& out) {
  const __m512i mask = _mm512_set1_epi32(kMagnitude), infinity = _mm512_set1_epi32(kInfinity);
  const __m512i limit = _mm512_set1_epi32(static_cast<int>(limit_bits));
  const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  Selected found;
  int64_t i = begin;
  for (; i + 64 <= end; i += 64) {
    __m512 a[4];
    __m512i m[4];
    for (int j = 0; j < 4; ++j) {
      __builtin_prefetch(in.g + i + 16 * j + kAhead);
      if constexpr (Feedback) __builtin_prefetch(in.r + i + 16 * j + kAhead, 1);
      a[j] = _mm512_loadu_ps(in.g + i + 16 * j);
      if constexpr (Feedback) a[j] = _mm512_add_ps(a[j], _mm512_loadu_ps(in.r + i + 16 * j));
      m[j] = _mm512_and_si512(_mm512_castps_si512(a[j]), mask);
    }
    __m512i most = _mm512_max_epi32(_mm512_max_epi32(m[0], m[1]), _mm512_max_epi32(m[2], m[3]));
    __mmask16 wild = _mm512_cmpge_epi32_mask(most, infinity);
    if (__builtin_expect(wild || found.count + 64 > out.capacity, 0)) {
      if (found.count == out.capacity && !wild) {
        for (int j = 0; Feedback && j < 4; ++j) _mm512_storeu_ps(in.r + i + 16 * j, a[j]);
      } else {
        found = append_scalar(found, in, i, i + 64, limit_bits, out);
      }
      continue;
    }
    for (int j = 0; j < 4; ++j) {
      __mmask16 hit = _mm512_cmpge_epi32_mask(m[j], limit);
      if constexpr (Feedback) _mm512_storeu_ps(in.r + i + 16 * j, _mm512_maskz_mov_ps(_knot_mask16(hit), a[j]));
      if (!hit) continue;
      __m512i places = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(i + 16 * j)), iota);
      _mm512_storeu_ps(out.values + found.count, _mm512_maskz_compress_ps(hit, a[j]));
      _mm512_storeu_si512(out.indices + found.count, _mm512_maskz_compress_epi32(hit, places));
      found.count += std::popcount(static_cast<unsigned>(hit));
    }
  }
  return append_scalar(found, in, i, end, limit_bits, out);
}

}  // namespace

Selected select_avx2(const Gradient& in, int64_t begin, int64_t end, uint32_t limit, const Pairs& out) {
  return in.r ? select8<true>(in, begin, end, limit, out) : select8<false>(in, begin, end, limit, out);
}

Selected select_avx512(const Gradient& in, int64_t begin, int64_t end, uint32_t limit, const Pairs& out) {
  return in.r ? select16<true>(in, begin, end, limit, out) : select16<false>(in, begin, end, limit, out);
}

}  // namespace gradwire
#endif
