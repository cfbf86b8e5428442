#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/int2_ops.h"
#include "kernels/parallel.h"
#include "kernels/quant.h"

namespace gradwire {
namespace {

Peaks peaks(const float* g, const float* r, int64_t n) {
  int32_t up = 0;
  uint32_t down = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits = bits_of(compensated(g, r, i));
    up = std::max(up, static_cast<int32_t>(bits));
    down = std::max(down, bits);
  }
  return peaks_of(static_cast<uint32_t>(up), down);
}

bool encode(const float* g, float* r, int64_t n, uint8_t* q, float* scale, const Int2Rounding& how) {
  Peaks found = peaks(g, r, n);
  if (!found.finite()) return false;
  const float s = *scale = found.scale(), inverse = s != 0.0f ? 1.0f / s : 0.0f;
  int8_t codes[kInt2Block] = {};
  for (int64_t i = 0; i < n; ++i) {
    float a = compensated(g, r, i);
    float t = a * inverse;
    float whole = how.stochastic ? std::floor(t) : std::nearbyint(t);
    if (how.stochastic) whole += noise(how.key, how.lane + static_cast<uint32_t>(i)) < t - whole ? 1.0f : 0.0f;
    whole = std::min(std::max(whole, -2.0f), 1.0f);
    codes[i] = static_cast<int8_t>(whole);
    if (r) r[i] = a - whole * s;
  }
  for (int64_t i = 0; i < n; i += 4) {
    const int8_t* c = codes + i;
    q[i / 4] = static_cast<uint8_t>((c[0] & 3) | (c[1] & 3) << 2 | (c[2] & 3) << 4 | (c[3] & 3) << 6);
  }
  return true;
}

void look_up(const uint8_t* in, const float* table, float* out, bool add) {
  for (int64_t i = 0; i < kInt2Block; ++i) {
    float x = table[in[i / 4] >> (i % 4 * 2) & 3];
    out[i] = add ? out[i] + x : x;
  }
}

const Int2Ops& int2_ops() {
#if defined(GRADWIRE_X86)
  if (best_isa() == Isa::avx512) return kInt2Avx512;
  if (best_isa() == Isa::avx2) return kInt2Avx2;
#endif
  return kInt2Scalar;
}

// weight * (code * scale) for the codes 0, 1, -2, -1: the order of two's complement.
struct Table {
  float value[4];
  Table(float scale, float weight)
      : value{weight * (0.0f * scale), weight * scale, weight * (-2.0f * scale), weight * -scale} {}
};

// A block with anything not finite decodes to NaN and keeps its residual; returns how many elements were not.
int64_t spoil(const float* g, const float* r, int64_t n, uint8_t* q, float* scale) {
  *scale = std::numeric_limits<float>::quiet_NaN();
  std::memset(q, 0, static_cast<size_t>((n + 3) / 4));
  int64_t wild = 0;
  for (int64_t i = 0; i < n; ++i) wild += !is_finite(compensated(g, r, i));
  return wild;
}

}  // namespace

const Int2Ops kInt2Scalar = {encode, look_up};

int64_t encode_int2(const QuantJob& job, uint8_t* q, float* scales) {
  const Int2Ops& op = int2_ops();
  std::atomic<int64_t> nonfinite = 0;
  in_parallel(useful_threads(job.threads, job.n), job.n, kInt2Block, [&](int, int64_t begin, int64_t end) {
    int64_t wild = 0;
    for (int64_t i = begin; i < end; i += kInt2Block) {
      const float* g = job.g + i;
      float *r = job.r ? job.r + i : nullptr, *scale = scales + i / kInt2Block;
      int64_t n = std::min(kInt2Block, end - i);
      Int2Rounding how{job.seed.has_value(), {0, 0}, static_cast<uint32_t>(i % 256)};
      if (job.seed) how.key = noise_key(*job.seed, static_cast<uint64_t>(i / 256));
      if (!op.encode(g, r, n, q + i / 4, scale, how)) wild += spoil(g, r, n, q + i / 4, scale);
    }
    nonfinite += wild;
  });
  return nonfinite;
}

void decode_int2(const uint8_t* q, const float* scales, float* out, int64_t n, float weight, bool add, int threads) {
  const Int2Ops& op = int2_ops();
  in_parallel(useful_threads(threads, n), n, kInt2Block, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kInt2Block) {
      const Table table(scales[i / kInt2Block], weight);
      int64_t m = std::min(kInt2Block, end - i);
      if (m == kInt2Block) {
        op.look_up(q + i / 4, table.value, out + i, add);
        continue;
      }
      uint8_t narrow[kInt2Block / 4] = {};
      float wide[kInt2Block] = {};
      std::memcpy(narrow, q + i / 4, static_cast<size_t>((m + 3) / 4));
      if (add) std::memcpy(wide, out + i, static_cast<size_t>(m) * sizeof(float));
      op.look_up(narrow, table.value, wide, add);
      std::memcpy(out + i, wide, static_cast<size_t>(m) * sizeof(float));
    }
  });
}

}  // namespace gradwire
