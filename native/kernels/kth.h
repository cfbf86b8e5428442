// The k-th largest of many magnitudes (as bits, up to infinity's), several times faster than nth_element over all of
// them: counted by the leading bits, an exponent and six bits of mantissa, and selected exactly only among those
// that share the k-th's.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/floats.h"

namespace gradwire {

// 1 <= k <= sizes.size(). The order of `sizes` changes.
inline uint32_t kth_largest(std::vector<uint32_t>& sizes, int64_t k) {
  constexpr uint32_t kShift = 17, kBins = (kInfinity >> kShift) + 1;
  constexpr size_t kFew = 2048;  // clearing and searching the counts would cost more
  auto end = sizes.end();
  if (sizes.size() > kFew) {
    std::vector<uint32_t> counts(kBins);
    for (uint32_t size : sizes) ++counts[size >> kShift];
    uint32_t bin = kBins - 1;
    for (; k > counts[bin]; --bin) k -= counts[bin];
    end = std::partition(sizes.begin(), sizes.end(), [bin](uint32_t size) { return size >> kShift == bin; });
  }
  auto nth = sizes.begin() + (k - 1);
  std::nth_element(sizes.begin(), nth, end, std::greater<>());
  return *nth;
}

}  // namespace gradwire
