#include "kernels/quant.h"

#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/parallel.h"
#include "kernels/quant_ops.h"

namespace gradwire {
namespace {

uint32_t largest(const float* g, const float* r, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, magnitude(compensated(g, r, i)));
  return most;
}

void quantise(const float* g, float* r, int8_t* q, int64_t n, const Rounding& how) {
  for (int64_t i = 0; i < n; ++i) {
    float a = compensated(g, r, i);
    float t = a * how.inverse;
    float whole = how.stochastic ? std::floor(t) : std::nearbyint(t);
    // Comparing noise with the exact fraction, not flooring t + noise, which would round up at large t.
    if (how.stochastic) whole += noise(how.key, how.lane + static_cast<uint32_t>(i)) < t - whole ? 1.0f : 0.0f;
    whole = std::min(std::max(whole, -how.levels), how.levels);
    q[i] = static_cast<int8_t>(whole);
    if (r) r[i] = a - whole * how.scale;
  }
}

void dequantise(const int8_t* q, float* out, int64_t n, float scale, float weight, bool add) {
  for (int64_t i = 0; i < n; ++i) {
    float x = weight * (static_cast<float>(q[i]) * scale);
    out[i] = add ? out[i] + x : x;
  }
}

uint8_t nibbles(int low, int high) { return static_cast<uint8_t>((low & 15) | (high & 15) << 4); }
int8_t low_nibble(uint8_t b) { return static_cast<int8_t>(((b & 15) ^ 8) - 8); }

void pack(const int8_t* q, uint8_t* out) {
  for (int64_t i = 0; i < kInt4Block / 2; ++i) out[i] = nibbles(q[2 * i], q[2 * i + 1]);
}

void unpack(const uint8_t* in, int8_t* q) {
  for (int64_t i = 0; i < kInt4Block; ++i) q[i] = low_nibble(static_cast<uint8_t>(in[i / 2] >> (i % 2 * 4)));
}

const QuantOps& ops() {
#if defined(GRADWIRE_X86)
  if (best_isa() == Isa::avx512) return kQuantAvx512;
  if (best_isa() == Isa::avx2) return kQuantAvx2;
#endif
  return kQuantScalar;
}

// The largest scale whose top level is still finite: above it r = a - inf would destroy the residual.
float scale_cap(float levels) {
  float cap = FLT_MAX / levels;
  while (!is_finite(cap * levels)) cap = std::nextafter(cap, 0.0f);
  return cap;
}

struct Blocks {
  const QuantOps& op;
  float levels, cap;
  int64_t block;
  std::optional<uint64_t> seed;

  // Writes one block's scale and values; returns how many elements were not finite.
  int64_t encode(int64_t begin, const float* g, float* r, int8_t* q, float* scale, int64_t n) const {
    uint32_t most = op.largest(g, r, n);
    if (most >= kInfinity) {
      *scale = std::numeric_limits<float>::quiet_NaN();
      std::memset(q, 0, static_cast<size_t>(n));
      int64_t wild = 0;
      for (int64_t i = 0; i < n; ++i) wild += !is_finite(compensated(g, r, i));
      return wild;
    }
    float s = std::min(float_of(most) / levels, cap);
    Rounding how{0.0f, 0.0f, levels, seed.has_value(), {0, 0}, static_cast<uint32_t>(begin % 256)};
    if (s >= FLT_MIN) {
      how.scale = s;
      how.inverse = 1.0f / s;
    }
    if (seed) how.key = noise_key(*seed, static_cast<uint64_t>(begin / 256));
    *scale = how.scale;
    op.quantise(g, r, q, n, how);
    return 0;
  }
};

}  // namespace

const QuantOps kQuantScalar = {largest, quantise, dequantise, pack, unpack};

int64_t encode_int8(const QuantJob& job, int8_t* q, float* scales) {
  const Blocks blocks{ops(), 127.0f, scale_cap(127.0f), kInt8Block, job.seed};
  std::atomic<int64_t> nonfinite = 0;
  in_parallel(useful_threads(job.threads, job.n), job.n, kInt8Block, [&](int, int64_t begin, int64_t end) {
    int64_t wild = 0;
    for (int64_t i = begin; i < end; i += kInt8Block)
      wild += blocks.encode(i, job.g + i, job.r ? job.r + i : nullptr, q + i, scales + i / kInt8Block,
                            std::min(kInt8Block, end - i));
    nonfinite += wild;
  });
  return nonfinite;
}

int64_t encode_int4(const QuantJob& job, uint8_t* q, float* scales) {
  const Blocks blocks{ops(), 7.0f, scale_cap(7.0f), kInt4Block, job.seed};
  std::atomic<int64_t> nonfinite = 0;
  in_parallel(useful_threads(job.threads, job.n), job.n, kInt4Block, [&](int, int64_t begin, int64_t end) {
    int64_t wild = 0;
    int8_t wide[kInt4Block];
    uint8_t narrow[kInt4Block / 2];
    for (int64_t i = begin; i < end; i += kInt4Block) {
      int64_t n = std::min(kInt4Block, end - i);
      if (n < kInt4Block) std::memset(wide, 0, sizeof wide);
      wild += blocks.encode(i, job.g + i, job.r ? job.r + i : nullptr, wide, scales + i / kInt4Block, n);
      blocks.op.pack(wide, n == kInt4Block ? q + i / 2 : narrow);
      if (n < kInt4Block) std::memcpy(q + i / 2, narrow, static_cast<size_t>((n + 1) / 2));
    }
    nonfinite += wild;
  });
  return nonfinite;
}

void decode_int8(const int8_t* q, const float* scales, float* out, int64_t n, float weight, bool add, int threads) {
  const QuantOps& op = ops();
  in_parallel(useful_threads(threads, n), n, kInt8Block, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kInt8Block)
      op.dequantise(q + i, out + i, std::min(kInt8Block, end - i), scales[i / kInt8Block], weight, add);
  });
}

void decode_int4(const uint8_t* q, const float* scales, float* out, int64_t n, float weight, bool add, int threads) {
  const QuantOps& op = ops();
  in_parallel(useful_threads(threads, n), n, kInt4Block, [&](int, int64_t begin, int64_t end) {
    int8_t wide[kInt4Block];
    uint8_t narrow[kInt4Block / 2] = {};
    for (int64_t i = begin; i < end; i += kInt4Block) {
      int64_t m = std::min(kInt4Block, end - i);
      if (m < kInt4Block) std::memcpy(narrow, q + i / 2, static_cast<size_t>((m + 1) / 2));
      op.unpack(m == kInt4Block ? q + i / 2 : narrow, wide);
      op.dequantise(wide, out + i, m, scales[i / kInt4Block], weight, add);
    }
  });
}

}  // namespace gradwire
