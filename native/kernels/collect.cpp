#include "kernels/collect.h"

#include <bit>

#include "kernels/floats.h"

#if defined(GRADWIRE_X86)
#include <immintrin.h>
#endif

namespace gradwire {

void Collector::add_scalar(int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    uint32_t m = magnitude(compensated(in_.g, in_.r, i));
    bool finite = m < kInfinity;
    finite_ += finite;
    nonfinite_ += !finite;
    if (!finite || m < limit_) continue;
    *room(1) = m;
    ++used_;
  }
}

#if defined(GRADWIRE_X86)
GRADWIRE_AVX2 void Collector::add_avx2(int64_t begin, int64_t end) {
  const __m256i mask = _mm256_set1_epi32(kMagnitude), below = _mm256_set1_epi32(static_cast<int>(limit_) - 1);
  const Gradient in = in_;
  int64_t i = begin;
  for (; i + 8 <= end; i += 8) {
    __m256 a = _mm256_loadu_ps(in.g + i);
    if (in.r) a = _mm256_add_ps(a, _mm256_loadu_ps(in.r + i));
    __m256i hit = _mm256_cmpgt_epi32(_mm256_and_si256(_mm256_castps_si256(a), mask), below);
    if (_mm256_testz_si256(hit, hit))  // nothing reaches the limit, so everything is finite
      finite_ += 8;
    else
      add_scalar(i, i + 8);
  }
  add_scalar(i, end);
}

GRADWIRE_AVX512 void Collector::add_avx512(int64_t begin, int64_t end) {
  const __m512i mask = _mm512_set1_epi32(kMagnitude), infinity = _mm512_set1_epi32(kInfinity);
  const __m512i least = _mm512_set1_epi32(static_cast<int>(limit_));
  const Gradient in = in_;  // a local copy stays in registers; stores might alias the members
  int64_t i = begin, all = 0;
  for (; i + 16 <= end; i += 16) {
    __m512 a = _mm512_loadu_ps(in.g + i);
    if (in.r) a = _mm512_add_ps(a, _mm512_loadu_ps(in.r + i));
    __m512i m = _mm512_and_si512(_mm512_castps_si512(a), mask);
    __mmask16 finite = _mm512_cmplt_epi32_mask(m, infinity);
    __mmask16 hit = _mm512_mask_cmpge_epi32_mask(finite, m, least);
    all += std::popcount(static_cast<unsigned>(finite));
    if (!hit) continue;
    _mm512_storeu_si512(room(16), _mm512_maskz_compress_epi32(hit, m));
    used_ += static_cast<size_t>(std::popcount(static_cast<unsigned>(hit)));
  }
  finite_ += all;
  nonfinite_ += i - begin - all;
  add_scalar(i, end);
}
#endif

void Collector::add(int64_t begin, int64_t end) {
#if defined(GRADWIRE_X86)
  if (isa_ == Isa::avx512) return add_avx512(begin, end);
  if (isa_ == Isa::avx2) return add_avx2(begin, end);
#endif
  add_scalar(begin, end);
}

}  // namespace gradwire
