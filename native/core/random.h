// Random numbers: Random is SplitMix64, small, seeded by the caller, the same everywhere, and not for keys; those come
// from the system.
#pragma once
#include <cstdint>

#include "core/bytes.h"

namespace gradwire {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

// Fills `out` from the system's generator; throws std::system_error when that fails.
void fill_random(MutableBytes out);

}  // namespace gradwire
