// Exact top-k: (1) a sampled threshold, lowered, gives a limit that a little more than k elements reach; (2) one
// pass collects their magnitudes and nth_element finds the k-th; (3) the fused pass selects everything above it.
// Equal magnitudes at the edge go to the lower indices.
#include <algorithm>
#include <vector>

#include "kernels/collect.h"
#include "kernels/floats.h"

namespace gradwire {
namespace {

struct Edge {
  uint32_t limit;   // the k-th largest magnitude's bits; infinity's stands for everything not finite
  int64_t allowed;  // how many elements equal to it may go
  bool crowded;     // more than that are equal to it
};

Edge edge_among(std::vector<uint32_t> found, int64_t nonfinite, int64_t k) {
  if (nonfinite >= k) return {kInfinity, k, nonfinite > k};
  auto nth = found.begin() + (k - nonfinite - 1);
  std::nth_element(found.begin(), nth, found.end(), std::greater<>());
  uint32_t limit = *nth;
  int64_t above = nonfinite, equal = 0;
  for (uint32_t m : found) {
    above += m > limit;
    equal += m == limit;
  }
  return {limit, k - above, equal > k - above};
}

Edge find_edge(const Gradient& in, int64_t k) {
  // 1.3 k leaves room for the sample's error; tiny k reads everything and is exact already.
  float guess = threshold(in, std::min(in.n - 1, k + k / 3 + 8));
  for (uint32_t limit : {k + 1 < in.n ? bits_of(guess) : 0u, 0u}) {
    Collector collector(in, limit);
    collector.add(0, in.n);
    int64_t nonfinite = collector.nonfinite();
    if (collector.count() + nonfinite >= k) return edge_among(collector.take(), nonfinite, k);
  }
  return {0, k, false};  // not reached: the second round sees every element, and k <= n
}

// Step 3 when more elements equal the edge than may go: those past the allowance stay.
Selected select_crowded(const Gradient& in, const Edge& edge, const Pairs& out) {
  Selected found;
  int64_t allowed = edge.allowed;
  for (int64_t i = 0; i < in.n; ++i) {
    float a = compensated(in.g, in.r, i);
    bool wild = !is_finite(a);
    uint32_t m = wild ? kInfinity : magnitude(a);
    bool taken = m > edge.limit || (m == edge.limit && allowed-- > 0);
    found.nonfinite += wild;
    if (taken) {
      out.indices[found.count] = static_cast<int32_t>(i);
      out.values[found.count++] = a;
    }
    if (in.r && !wild) in.r[i] = taken ? 0.0f : a;
  }
  return found;
}

}  // namespace

Selected select_exact(const Gradient& in, int64_t k, const Pairs& out, int threads) {
  k = std::min({k, in.n, out.capacity});
  Pairs pairs{out.indices, out.values, std::max<int64_t>(k, 0)};
  if (k <= 0) return select(in, float_of(kInfinity), pairs, threads);
  Edge edge = find_edge(in, k);
  if (edge.crowded) return select_crowded(in, edge, pairs);
  return select(in, float_of(edge.limit), pairs, threads);
}

}  // namespace gradwire
