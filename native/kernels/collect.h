// Collector: collects the magnitudes (as bits) of g + r that are finite and reach a limit, without changing anything.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/select.h"

namespace gradwire {

class Collector {
 public:
  Collector(const Gradient& in, uint32_t limit) : in_(in), limit_(limit), isa_(best_isa()) {}

  // Reads elements [begin, end); cheap also for a single cache line.
  void add(int64_t begin, int64_t end);

  std::vector<uint32_t> take() {
    found_.resize(used_);
    return std::move(found_);
  }
  int64_t finite() const { return finite_; }
  int64_t nonfinite() const { return nonfinite_; }
  int64_t count() const { return static_cast<int64_t>(used_); }

 private:
  uint32_t* room(size_t more) {
    if (found_.size() < used_ + more) found_.resize(2 * (used_ + more));
    return found_.data() + used_;
  }
  void add_scalar(int64_t begin, int64_t end);
  void add_avx2(int64_t begin, int64_t end);
  void add_avx512(int64_t begin, int64_t end);

  Gradient in_;
  uint32_t limit_;
  Isa isa_;
  std::vector<uint32_t> found_;
  size_t used_ = 0;
  int64_t finite_ = 0, nonfinite_ = 0;
};

}  // namespace gradwire
