// Permutation: a seeded permutation of 0..size-1 without a table: four Feistel rounds over the next even power of two,
// repeated until the value is inside (cycle walking). The sending order is permuted so that a burst of losses does not
// hit one layer.
#pragma once
#include <bit>
#include <cstdint>

namespace gradwire::ltp {

class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t seed) : size_(size), seed_(seed) {
    int bits = size > 1 ? static_cast<int>(std::bit_width(size - 1)) : 1;
    half_ = (bits + 1) / 2;
    mask_ = (std::uint64_t{1} << half_) - 1;
  }
  std::uint64_t operator()(std::uint64_t index) const {
    do index = once(index);
    while (index >= size_);
    return index;
  }

 private:
  std::uint64_t once(std::uint64_t value) const {
    std::uint64_t left = value >> half_, right = value & mask_;
    for (std::uint64_t round = 0; round < 4; ++round) {
      std::uint64_t mixed = (right + seed_ + round) * 0x9e3779b97f4a7c15ull;
      mixed = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9ull;
      std::uint64_t swapped = left ^ ((mixed ^ mixed >> 32) & mask_);
      left = right;
      right = swapped;
    }
    return left << half_ | right;
  }

  std::uint64_t size_, seed_, mask_ = 0;
  int half_ = 1;
};

}  // namespace gradwire::ltp
