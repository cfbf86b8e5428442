// Splits [0, n) over a few threads for the duration of one call. The split never changes a kernel's output.
#pragma once
#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace gradwire {

// Starting and joining a thread costs 55 us at best, a kernel about 0.27 us per 1024 elements: below this a second
// thread saves less than half of the time it could, and on a busy machine loses.
constexpr int64_t kElementsPerThread = 512 * 1024;

inline int useful_threads(int asked, int64_t n) {
  return static_cast<int>(std::clamp<int64_t>(asked, 1, std::max<int64_t>(1, n / kElementsPerThread)));
}

// Calls work(part, begin, end) for each part; boundaries are multiples of `grain` (blocks, cache lines).
template <typename Work>
void in_parallel(int parts, int64_t n, int64_t grain, const Work& work) {
  if (parts <= 1) return work(0, int64_t{0}, n);
  int64_t step = (n + parts - 1) / parts;
  step = (step + grain - 1) / grain * grain;
  auto part = [&](int p) { work(p, std::min(n, p * step), std::min(n, (p + 1) * step)); };
  std::vector<std::jthread> threads;
  for (int p = 1; p < parts; ++p) threads.emplace_back(part, p);
  part(0);
}

}  // namespace gradwire
