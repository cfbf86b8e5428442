// Exact top-k: (1) a sampled threshold, lowered, gives a limit that a little more than k elements reach; (2) one
// pass collects their magnitudes, the k-th of which is the edge; (3) the fused pass selects everything above it.
// Of equal magnitudes at the edge, the lower indices are selected.
//
// The k largest, in little more than one pass: (a) a quick threshold gives a limit that somewhat more than k elements
// reach; (b) the fused pass selects all of them; (c) what is below the k-th of them is restored. If the quick threshold
// was wrong, all of it is restored, and everything except zeros is selected instead.
#include "kernels/exact.h"

#include <algorithm>
#include <cfloat>
#include <memory>
#include <vector>

#include "kernels/collect.h"
#include "kernels/floats.h"
#include "kernels/kth.h"
#include "kernels/threshold.h"

namespace gradwire {
namespace {

struct Edge {
  uint32_t limit;   // the k-th largest magnitude's bits; infinity's stands for everything not finite
  int64_t allowed;  // how many elements equal to it are selected
  bool crowded;     // more than that are equal to it
};

Edge edge_among(std::vector<uint32_t> found, int64_t nonfinite, int64_t k) {
  if (nonfinite >= k) return {kInfinity, k, nonfinite > k};
  uint32_t limit = kth_largest(found, k - nonfinite);
  int64_t above = nonfinite, equal = 0;
  for (uint32_t m : found) {
    above += m > limit;
    equal += m == limit;
  }
  return {limit, k - above, equal > k - above};
}

Edge find_edge(const Gradient& in, int64_t k) {
  // 1.3 k allows for the sample's error; for tiny k everything is read and the result is exact.
  float guess = threshold(in, std::min(in.n - 1, k + k / 3 + 8));
  for (uint32_t limit : {k + 1 < in.n ? bits_of(guess) : 0u, 0u}) {
    Collector collector(in, limit);
    collector.add(0, in.n);
    int64_t nonfinite = collector.nonfinite();
    if (collector.count() + nonfinite >= k) return edge_among(collector.take(), nonfinite, k);
  }
  return {0, k, false};  // not reached: the second round sees every element, and k <= n
}

// Step 3 when more elements equal the edge than are selected: the rest stays.
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

// The elements that reached a limit.
struct Candidates {
  std::unique_ptr<int32_t[]> indices;
  std::unique_ptr<float[]> values;
  Selected found;
  bool full;  // the capacity was too small

  Candidates(const Gradient& in, float least, int64_t room, int threads) {
    indices.reset(new int32_t[static_cast<size_t>(room)]);  // not make_unique: unused pages must not be written
    values.reset(new float[static_cast<size_t>(room)]);
    found = select(in, least, {indices.get(), values.get(), room}, threads);
    full = found.count == room && room < in.n;
  }

  // Whether the k largest are among them; elements below FLT_MIN are never selected.
  bool holds(int64_t k, float least) const { return !full && (found.count >= k || least <= FLT_MIN); }
  uint32_t size(int64_t i) const { return std::min(magnitude(values[static_cast<size_t>(i)]), kInfinity); }
  void restore(const Gradient& in, int64_t i) const {
    auto at = static_cast<size_t>(i);
    if (in.r && is_finite(values[at])) in.r[indices[at]] = values[at];
  }
  void restore_all(const Gradient& in) const {
    for (int64_t i = 0; i < found.count; ++i) restore(in, i);
  }
};

Edge edge_of(const Candidates& candidates, int64_t k) {
  if (candidates.found.count <= k) return {0, k, false};
  std::vector<uint32_t> sizes(static_cast<size_t>(candidates.found.count));
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = candidates.size(static_cast<int64_t>(i));
  return edge_among(std::move(sizes), 0, k);
}

// Step c.
Selected cut(const Candidates& candidates, const Gradient& in, int64_t k, const Pairs& out) {
  Edge edge = edge_of(candidates, k);
  Selected kept{0, candidates.found.nonfinite};
  for (int64_t i = 0; i < candidates.found.count; ++i) {
    uint32_t m = candidates.size(i);
    if (m > edge.limit || (m == edge.limit && edge.allowed-- > 0)) {
      out.indices[kept.count] = candidates.indices[static_cast<size_t>(i)];
      out.values[kept.count++] = candidates.values[static_cast<size_t>(i)];
    } else {
      candidates.restore(in, i);
    }
  }
  return kept;
}

// What is left of the gradient once r holds g + r: -0, which changes no float it is added to, except where the sum is
// not finite: r never holds that.
std::vector<float> rest(const Gradient& in, const Candidates& candidates) {
  std::vector<float> left(static_cast<size_t>(in.n), -0.0f);
  if (!candidates.found.nonfinite) return left;
  for (size_t i = 0; i < left.size(); ++i)
    if (!is_finite(in.g[i])) left[i] = in.g[i];
  for (int64_t i = 0; i < candidates.found.count; ++i) {
    auto at = static_cast<size_t>(candidates.indices[static_cast<size_t>(i)]);
    if (candidates.size(i) == kInfinity) left[at] = in.g[at];  // two finite values may have an infinite sum
  }
  return left;
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

Selected select_largest(const Gradient& in, int64_t k, const Pairs& out, int threads) {
  k = std::min({k, in.n, out.capacity});
  if (k <= 0) return select(in, float_of(kInfinity), {out.indices, out.values, 0}, threads);
  QuickThreshold quick = quick_threshold(in, k);                                             // a
  Candidates candidates(in, quick.least, std::min(in.n, 2 * quick.expected + 64), threads);  // b
  if (candidates.holds(k, quick.least)) return cut(candidates, in, k, out);                  // c
  candidates.restore_all(in);
  std::vector<float> left = rest(in, candidates);
  Gradient again{in.r ? left.data() : in.g, in.r, in.n};
  return cut(Candidates(again, FLT_MIN, in.n, threads), again, k, out);
}

}  // namespace gradwire
