#include "kernels/sparse.h"

#include <algorithm>
#include <atomic>

#include "kernels/cpu.h"
#include "kernels/floats.h"
#include "kernels/parallel.h"

#if defined(GRADWIRE_X86)
#include <immintrin.h>
#endif

namespace gradwire {
namespace {

int64_t accumulate_scalar(const float* g, float* r, int64_t n) {
  int64_t nonfinite = 0;
  for (int64_t i = 0; i < n; ++i) {
    float a = g[i] + r[i];
    nonfinite += !is_finite(a);
    r[i] = is_finite(a) ? a : r[i];
  }
  return nonfinite;
}

void add_scalar(const float* g, float* r, int64_t n) {
  for (int64_t i = 0; i < n; ++i) r[i] += g[i];
}

#if defined(GRADWIRE_X86)
GRADWIRE_AVX2 int64_t accumulate_avx2(const float* g, float* r, int64_t n) {
  const __m256i mask = _mm256_set1_epi32(kMagnitude), last = _mm256_set1_epi32(kInfinity - 1);
  int64_t i = 0, nonfinite = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 a = _mm256_add_ps(_mm256_loadu_ps(g + i), _mm256_loadu_ps(r + i));
    __m256i wild = _mm256_cmpgt_epi32(_mm256_and_si256(_mm256_castps_si256(a), mask), last);
    if (__builtin_expect(!_mm256_testz_si256(wild, wild), 0))
      nonfinite += accumulate_scalar(g + i, r + i, 8);
    else
      _mm256_storeu_ps(r + i, a);
  }
  return nonfinite + accumulate_scalar(g + i, r + i, n - i);
}

GRADWIRE_AVX512 int64_t accumulate_avx512(const float* g, float* r, int64_t n) {
  const __m512i mask = _mm512_set1_epi32(kMagnitude), infinity = _mm512_set1_epi32(kInfinity);
  int64_t i = 0, nonfinite = 0;
  for (; i + 16 <= n; i += 16) {
    __m512 a = _mm512_add_ps(_mm512_loadu_ps(g + i), _mm512_loadu_ps(r + i));
    __mmask16 sane = _mm512_cmplt_epi32_mask(_mm512_and_si512(_mm512_castps_si512(a), mask), infinity);
    _mm512_mask_storeu_ps(r + i, sane, a);
    nonfinite += 16 - std::popcount(static_cast<unsigned>(sane));
  }
  return nonfinite + accumulate_scalar(g + i, r + i, n - i);
}

GRADWIRE_AVX2 void add_avx2(const float* g, float* r, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(r + i, _mm256_add_ps(_mm256_loadu_ps(g + i), _mm256_loadu_ps(r + i)));
  add_scalar(g + i, r + i, n - i);
}

GRADWIRE_AVX512 void add_avx512(const float* g, float* r, int64_t n) {
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    __m512 a[4];
    for (int j = 0; j < 4; ++j) a[j] = _mm512_add_ps(_mm512_loadu_ps(g + i + 16 * j), _mm512_loadu_ps(r + i + 16 * j));
    for (int j = 0; j < 4; ++j) _mm512_storeu_ps(r + i + 16 * j, a[j]);
  }
  add_scalar(g + i, r + i, n - i);
}
#endif

auto accumulator() {
#if defined(GRADWIRE_X86)
  if (best_isa() == Isa::avx512) return accumulate_avx512;
  if (best_isa() == Isa::avx2) return accumulate_avx2;
#endif
  return accumulate_scalar;
}

bool inside(const int32_t* indices, int64_t count, int64_t n) {
  bool ok = true;  // no early exit: this loop becomes vector code
  auto end = static_cast<uint64_t>(n);
  for (int64_t i = 0; i < count; ++i) ok &= static_cast<uint64_t>(static_cast<int64_t>(indices[i])) < end;
  return ok;
}

void take(const Gradient& in, const int32_t* indices, float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = compensated(in.g, in.r, indices[i]);
}

void clear(float* r, const int32_t* indices, const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (is_finite(values[i])) r[indices[i]] = 0.0f;
}

}  // namespace

int64_t accumulate(const float* g, float* r, int64_t n, int threads) {
  std::atomic<int64_t> nonfinite = 0;
  in_parallel(useful_threads(threads, n), n, 16,
              [&](int, int64_t begin, int64_t end) { nonfinite += accumulator()(g + begin, r + begin, end - begin); });
  return nonfinite;
}

bool gather(const Gradient& in, const int32_t* indices, float* values, int64_t count, int64_t* nonfinite) {
  if (!inside(indices, count, in.n)) return false;
  *nonfinite = 0;
  if (!in.r) {
    take(in, indices, values, count);
    for (int64_t i = 0; i < in.n; ++i) *nonfinite += !is_finite(in.g[i]);
    return true;
  }
  // Sorted indices (the usual case) are handled range by range while it is in the cache; others need three passes.
  constexpr int64_t kRange = 4096;
  int64_t range = std::is_sorted(indices, indices + count) ? kRange : std::max<int64_t>(in.n, 1);
  int64_t from = 0;
  for (int64_t begin = 0; begin < in.n; begin += range) {
    int64_t end = std::min(in.n, begin + range), to = from;
    if (range == kRange)
      while (to < count && indices[to] < end) ++to;
    else
      to = count;
    take(in, indices + from, values + from, to - from);
    *nonfinite += accumulator()(in.g + begin, in.r + begin, end - begin);
    clear(in.r, indices + from, values + from, to - from);
    from = to;
  }
  return true;
}

bool scatter_add(const int32_t* indices, const float* values, int64_t count, float* out, int64_t n, float weight) {
  if (!inside(indices, count, n)) return false;
  for (int64_t i = 0; i < count; ++i) out[indices[i]] += weight * values[i];
  return true;
}

void add(const float* g, float* r, int64_t n, int threads) {
  auto plain = add_scalar;
#if defined(GRADWIRE_X86)
  if (best_isa() == Isa::avx2) plain = add_avx2;
  if (best_isa() == Isa::avx512) plain = add_avx512;
#endif
  in_parallel(useful_threads(threads, n), n, 16,
              [&](int, int64_t begin, int64_t end) { plain(g + begin, r + begin, end - begin); });
}

}  // namespace gradwire
