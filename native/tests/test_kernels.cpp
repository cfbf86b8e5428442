// Every instruction set writes what the scalar code writes, on sizes around each vector width, under the sanitizers.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/bfloat.h"
#include "kernels/checksum.h"
#include "kernels/cpu.h"
#include "kernels/exact.h"
#include "kernels/half.h"
#include "kernels/quant.h"
#include "kernels/select.h"
#include "kernels/sparse.h"
#include "kernels/threshold.h"
#include "tests/check.h"

using namespace gradwire;

namespace {

using Floats = std::vector<float>;

// Exactly sized heap blocks, so that the sanitizer reports an access one element too far.
struct Case {
  Floats g, r;
  float least;
};

Case make_case(std::mt19937& random, int64_t n) {
  std::normal_distribution<float> normal;
  Case c{Floats(static_cast<size_t>(n)), Floats(static_cast<size_t>(n)), 1.0f};
  for (float& x : c.g) x = normal(random);
  for (float& x : c.r) x = normal(random);
  const float wild[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 0.0f,
                        std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()};
  for (int i = 0; n > 0 && random() % 2 && i < 3; ++i) c.g[random() % static_cast<size_t>(n)] = wild[random() % 5];
  c.least = static_cast<float>(random() % 4);
  return c;
}

using Bytes = std::vector<unsigned char>;

template <typename T>
void append(Bytes& to, const std::vector<T>& values, size_t count) {
  const auto* raw = reinterpret_cast<const unsigned char*>(values.data());
  to.insert(to.end(), raw, raw + count * sizeof(T));
}
template <typename T>
void append(Bytes& to, const std::vector<T>& values) {
  append(to, values, values.size());
}

// The payload bits of a NaN depend on the hardware; everything else must match.
void append_floats(Bytes& to, Floats values) {
  for (float& x : values)
    if (std::isnan(x)) x = std::numeric_limits<float>::quiet_NaN();
  append(to, values);
}

Bytes dense(const Case& c, int threads) {
  auto n = static_cast<int64_t>(c.g.size());
  Bytes bytes;
  for (Half kind : {Half::fp16, Half::bf16}) {
    Floats r = c.r, wide(c.g.size(), 0.5f);
    std::vector<uint16_t> half(c.g.size());
    bytes.push_back(static_cast<unsigned char>(encode_half(kind, c.g.data(), r.data(), half.data(), n, threads)));
    decode_half(kind, half.data(), wide.data(), n, 0.3f, true, threads);
    append(bytes, half);
    round_to_bfloat(c.g.data(), half.data(), n, 12345);
    append(bytes, half);
    append_floats(bytes, r);
    append_floats(bytes, wide);
  }
  for (std::optional<uint64_t> seed : {std::optional<uint64_t>(), std::optional<uint64_t>(9)}) {
    Floats r = c.r, s8((c.g.size() + 255) / 256), s4((c.g.size() + 63) / 64), s2(s4.size()), wide(c.g.size(), 0.5f);
    std::vector<int8_t> q8(c.g.size());
    std::vector<uint8_t> q4((c.g.size() + 1) / 2), q2((c.g.size() + 3) / 4);
    encode_int8({c.g.data(), r.data(), n, seed, threads}, q8.data(), s8.data());
    encode_int4({c.g.data(), r.data(), n, seed, threads}, q4.data(), s4.data());
    encode_int2({c.g.data(), r.data(), n, seed, threads}, q2.data(), s2.data());
    decode_int8(q8.data(), s8.data(), wide.data(), n, 0.3f, false, threads);
    decode_int4(q4.data(), s4.data(), wide.data(), n, 0.3f, true, threads);
    decode_int2(q2.data(), s2.data(), wide.data(), n, 0.7f, true, threads);
    append(bytes, q8);
    append(bytes, q2);
    append(bytes, q4);
    for (const Floats* f : {&r, &s8, &s4, &s2, &wide}) append_floats(bytes, *f);
  }
  return bytes;
}

Bytes sparse(const Case& c, size_t capacity, int threads) {
  auto n = static_cast<int64_t>(c.g.size());
  Bytes bytes;
  for (int way : {0, 1, 2}) {
    Floats r = c.r, values(capacity);
    std::vector<int32_t> indices(capacity);
    Pairs out{indices.data(), values.data(), static_cast<int64_t>(capacity)};
    Gradient in{c.g.data(), r.data(), n};
    Selected found = way == 0   ? select(in, c.least, out, threads)
                     : way == 1 ? select_exact(in, out.capacity, out, threads)
                                : select_largest(in, out.capacity, out, threads);
    CHECK(found.count <= out.capacity);
    indices.resize(static_cast<size_t>(found.count));
    values.resize(static_cast<size_t>(found.count));
    append(bytes, indices);
    append_floats(bytes, values);
    append_floats(bytes, r);
    for (float x : r) CHECK(std::isfinite(x));
    int64_t nonfinite = 0;
    CHECK(gather(in, indices.data(), values.data(), found.count, &nonfinite));
    append_floats(bytes, r);
    CHECK(scatter_add(indices.data(), values.data(), found.count, r.data(), n, 2.0f));
    append_floats(bytes, r);
  }
  Floats r = c.r;
  bytes.push_back(static_cast<unsigned char>(accumulate(c.g.data(), r.data(), n, threads)));
  append_floats(bytes, r);
  float t = threshold({c.g.data(), r.data(), n}, n / 10 + 1);
  append_floats(bytes, {t});
  uint32_t sum = crc32c(reinterpret_cast<const uint8_t*>(r.data()), n * 4);
  append(bytes, std::vector<uint32_t>{sum});
  return bytes;
}

void all_sets_agree(const Case& c, size_t capacity, int threads) {
  set_isa(Isa::scalar);
  Bytes want_dense = dense(c, 1), want_sparse = sparse(c, capacity, 1);
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (set_isa(isa) != isa) continue;
    CHECK(dense(c, threads) == want_dense);
    CHECK(sparse(c, capacity, threads) == want_sparse);
  }
}

}  // namespace

int main() {
  std::mt19937 random(1);
  for (int64_t n : {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 255, 256, 257, 511, 513, 1000, 9001})
    for (int round = 0; round < 6; ++round)
      all_sets_agree(make_case(random, n), random() % static_cast<size_t>(n + 2), 1);
  all_sets_agree(make_case(random, 1'100'001), 60'000, 2);  // large enough for two threads
  return gradwire::test::finish();
}
