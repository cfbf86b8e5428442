// Counter-based noise for stochastic rounding: a pure function of (seed, element index), so that every instruction
// set, thread split and device rounds alike. Each run of 256 elements hashes (seed, run) once to a 64-bit key
// (splitmix64's finaliser); each element mixes its place in the run with it (a 32-bit xor-multiply finaliser).
#pragma once
#include <cstdint>

namespace gradwire {

constexpr uint32_t kLaneStep = 0x9E3779B9u, kMix1 = 0x7FEB352Du, kMix2 = 0x846CA68Bu;

struct NoiseKey {
  uint32_t add, flip;
};

inline NoiseKey noise_key(uint64_t seed, uint64_t run) {
  uint64_t x = seed + (run + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  x ^= x >> 31;
  return {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)};
}

inline uint32_t noise_bits(NoiseKey key, uint32_t lane) {
  uint32_t x = lane * kLaneStep + key.add;
  x = (x ^ x >> 16) * kMix1;
  x = (x ^ x >> 15) * kMix2;
  return (x ^ x >> 16) ^ key.flip;
}

// Uniform on the multiples of 2^-24 in [0, 1).
inline float noise(NoiseKey key, uint32_t lane) { return static_cast<float>(noise_bits(key, lane) >> 8) * 0x1p-24f; }

}  // namespace gradwire
