// The threshold is the exact order statistic of a sample that is large enough for the requested ratio.
//
// 1. A sample of s elements holds about k' = s * k / n of the largest k; its k'-th magnitude misses the true one's
//    rank by 1/sqrt(k') of k. So s grows as the ratio shrinks: 1200 elements above the threshold give 3 % (one
//    standard deviation) at any size, and allow for neighbours in a line that are large together, as in rows
//    of a weight. A fixed 64 Ki sample would miss by 12 % at 0.1 %.
// 2. The sample is stratified: one cache line from a hashed place in each of many equal strata, so that layers of
//    very different scale are sampled in proportion and no row length can alias with a stride. When more than a quarter
//    would be read, all of it is (streaming is faster than jumping), and the result is exact.
// 3. Selecting from the whole sample would cost more than reading it. A rough limit from 4 Ki elements, loose
//    enough to be below the answer, lets a vector pass keep only a few thousand candidates; if the limit is
//    too high, everything is kept and the answer is the same.
#include "kernels/threshold.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/collect.h"
#include "kernels/floats.h"
#include "kernels/kth.h"

namespace gradwire {
namespace {

constexpr int64_t kLine = 16;                // floats in a cache line
constexpr int64_t kWanted = 1200;            // elements of the sample above the threshold
constexpr int64_t kLeastSample = 64 * 1024;  // so that high ratios are not decided by a few lines
constexpr int64_t kRough = 4 * 1024;
constexpr int64_t kQuickSample = 16 * 1024;  // 20 us to read, a sixth of the fused pass over 300,000 elements
constexpr int64_t kBlock = 64;  // of the quick sample: single lines take twice the time, longer runs save little

struct Sample {
  int64_t n, strata;  // strata == 0: everything
  int64_t step;       // a stratum's width in runs, times 2^20: divisions would cost more than reading
  int64_t run;        // elements of a run, the unit of reading

  int64_t place(int64_t s) const {
    int64_t begin = s * step >> 20, end = (s + 1) * step >> 20;
    auto x = static_cast<uint32_t>(s);
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return (begin + (static_cast<int64_t>(x ^ x >> 16) * (end - begin) >> 32)) * run;
  }
};

Sample stratified(int64_t n, int64_t size, int64_t run) { return {n, size / run, (n / run << 20) / (size / run), run}; }

Sample plan(int64_t n, int64_t k) {
  int64_t size = std::max(kLeastSample, static_cast<int64_t>(static_cast<__int128>(n) * kWanted / k));
  if (size > n / 4) return {n, 0, 0, kLine};
  return stratified(n, size, kLine);
}

// The limit of step 3: in a regular subset of the strata (or runs), a rank well beyond the wanted one.
uint32_t rough_limit(const Gradient& in, const Sample& sample, int64_t k) {
  if (in.n < 2 * kRough) return 0;
  Collector all(in, 0);
  int64_t runs = sample.strata ? sample.strata : in.n / sample.run, picks = kRough / sample.run;
  for (int64_t p = 0; p < picks; ++p) {
    int64_t at = p * runs / picks;
    int64_t begin = sample.strata ? sample.place(at) : at * sample.run;
    all.add(begin, begin + sample.run);
  }
  std::vector<uint32_t> found = all.take();
  double expected = static_cast<double>(found.size()) * static_cast<double>(k) / static_cast<double>(in.n);
  auto rank = static_cast<size_t>(1.5 * expected + 5 * std::sqrt(expected) + 8);
  if (rank >= found.size()) return 0;
  return kth_largest(found, static_cast<int64_t>(rank) + 1);
}

void read_sample(const Gradient& in, const Sample& sample, Collector& collector) {
  if (!sample.strata) return collector.add(0, in.n);
  constexpr int64_t kAhead = 8;  // jumps defeat the hardware's prefetching
  for (int64_t s = 0; s < sample.strata; ++s) {
    if (s + kAhead < sample.strata) {
      int64_t next = sample.place(s + kAhead);
      __builtin_prefetch(in.g + next);
      if (in.r) __builtin_prefetch(in.r + next);
    }
    int64_t begin = sample.place(s);
    collector.add(begin, begin + sample.run);
  }
}

// The k'-th largest of the sample; `known` is false when the limit left too few elements.
float order_statistic(Collector& collector, int64_t k, int64_t n, bool& known) {
  int64_t finite = collector.finite();
  known = true;
  if (finite == 0) return FLT_MIN;
  auto rank = static_cast<int64_t>((static_cast<__int128>(k) * finite + n / 2) / n);
  rank = std::clamp<int64_t>(rank, 1, finite);
  known = collector.count() >= rank;
  if (!known) return 0;
  std::vector<uint32_t> found = collector.take();
  return std::max(FLT_MIN, float_of(kth_largest(found, rank)));
}

float kth_of(const Gradient& in, const Sample& sample, int64_t k, uint32_t limit) {
  bool known = false;
  float result = 0;
  for (; !known; limit = 0) {
    Collector collector(in, limit);
    read_sample(in, sample, collector);
    result = order_statistic(collector, k, in.n, known);
  }
  return result;
}

}  // namespace

float threshold(const Gradient& in, int64_t k) {
  if (k <= 0) return std::numeric_limits<float>::infinity();
  if (k >= in.n) return FLT_MIN;
  Sample sample = plan(in.n, k);
  return kth_of(in, sample, k, rough_limit(in, sample, k));
}

// The sample holds about h of the largest k. Its rank h + h/4 + 3 sqrt(h) + 2 is reached by k elements, and by about
// 1.5 times as many at 1 %, twice at 0.1 %: three standard deviations, and a quarter for neighbours that are large
// together.
QuickThreshold quick_threshold(const Gradient& in, int64_t k) {
  int64_t size = std::min(kQuickSample, in.n / 4) / kBlock * kBlock;
  if (size < kRough || k <= 0) return {FLT_MIN, in.n};
  double held = static_cast<double>(size) * static_cast<double>(k) / static_cast<double>(in.n);
  double rank = 1.25 * held + 3 * std::sqrt(held) + 2;
  auto expected = static_cast<int64_t>(rank * static_cast<double>(in.n) / static_cast<double>(size));
  if (expected >= in.n) return {FLT_MIN, in.n};
  return {kth_of(in, stratified(in.n, size, kBlock), expected, 0), expected};
}

}  // namespace gradwire
