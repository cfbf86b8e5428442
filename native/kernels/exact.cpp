// Exact top-k: (1) a sampled threshold, lowered, gives a limit that a little more than k elements reach; (2) one
// pass collects their magnitudes, the k-th of which is the edge; (3) the fused pass selects everything above it.
// Equal magnitudes at the edge go to the lower indices.
//
// The k largest, in little more than one pass: (a) a glance gives a limit that somewhat more than k elements reach; (b)
// the fused pass takes all of them; (c) what is below the k-th of them goes back. Where the glance erred,
// all of it goes back, and everything but zeros is caught instead.
#include <algorithm>
#include <cfloat>
#include <memory>
#include <vector>

#include "kernels/collect.h"
#include "kernels/floats.h"
#include "kernels/kth.h"

namespace gradwire {
namespace {

struct Edge {
  uint32_t limit;   // the k-th largest magnitude's bits; infinity's stands for everything not finite
  int64_t allowed;  // how many elements equal to it may go
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

// What reached a limit.
struct Catch {
  std::unique_ptr<int32_t[]> indices;
  std::unique_ptr<float[]> values;
  Selected found;
  bool full;  // there was no room for more

  Catch(const Gradient& in, float least, int64_t room, int threads) {
    indices.reset(new int32_t[static_cast<size_t>(room)]);  // not make_unique: untouched pages must stay untouched
    values.reset(new float[static_cast<size_t>(room)]);
    found = select(in, least, {indices.get(), values.get(), room}, threads);
    full = found.count == room && room < in.n;
  }

  // Whether the k largest are among them; what is not above FLT_MIN is never wanted.
  bool holds(int64_t k, float least) const { return !full && (found.count >= k || least <= FLT_MIN); }
  uint32_t size(int64_t i) const { return std::min(magnitude(values[static_cast<size_t>(i)]), kInfinity); }
  void put_back(const Gradient& in, int64_t i) const {
    auto at = static_cast<size_t>(i);
    if (in.r && is_finite(values[at])) in.r[indices[at]] = values[at];
  }
  void put_all_back(const Gradient& in) const {
    for (int64_t i = 0; i < found.count; ++i) put_back(in, i);
  }
};

Edge edge_of(const Catch& caught, int64_t k) {
  if (caught.found.count <= k) return {0, k, false};
  std::vector<uint32_t> sizes(static_cast<size_t>(caught.found.count));
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = caught.size(static_cast<int64_t>(i));
  return edge_among(std::move(sizes), 0, k);
}

// Step c.
Selected cut(const Catch& caught, const Gradient& in, int64_t k, const Pairs& out) {
  Edge edge = edge_of(caught, k);
  Selected kept{0, caught.found.nonfinite};
  for (int64_t i = 0; i < caught.found.count; ++i) {
    uint32_t m = caught.size(i);
    if (m > edge.limit || (m == edge.limit && edge.allowed-- > 0)) {
      out.indices[kept.count] = caught.indices[static_cast<size_t>(i)];
      out.values[kept.count++] = caught.values[static_cast<size_t>(i)];
    } else {
      caught.put_back(in, i);
    }
  }
  return kept;
}

// What is left of the gradient once r holds g + r: -0, which adds nothing to any float, but where the sum is not finite,
// which r never holds.
std::vector<float> rest(const Gradient& in, const Catch& caught) {
  std::vector<float> left(static_cast<size_t>(in.n), -0.0f);
  if (!caught.found.nonfinite) return left;
  for (size_t i = 0; i < left.size(); ++i)
    if (!is_finite(in.g[i])) left[i] = in.g[i];
  for (int64_t i = 0; i < caught.found.count; ++i) {
    auto at = static_cast<size_t>(caught.indices[static_cast<size_t>(i)]);
    if (caught.size(i) == kInfinity) left[at] = in.g[at];  // two finite ones may have an infinite sum
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
  Glance near = glance(in, k);  // a
  Catch caught(in, near.least, std::min(in.n, 2 * near.expected + 64), threads);  // b
  if (caught.holds(k, near.least)) return cut(caught, in, k, out);  // c
  caught.put_all_back(in);
  std::vector<float> left = rest(in, caught);
  Gradient again{in.r ? left.data() : in.g, in.r, in.n};
  return cut(Catch(again, FLT_MIN, in.n, threads), again, k, out);
}

}  // namespace gradwire
