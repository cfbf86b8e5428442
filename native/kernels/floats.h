// Floats as bits, shared by the kernels. Magnitudes are compared as integers: the bits of |a| grow with |a|, and
// everything that is not finite is at or above infinity's bits.
#pragma once
#include <bit>
#include <cstdint>

namespace gradwire {

constexpr uint32_t kInfinity = 0x7F800000u;
constexpr uint32_t kMagnitude = 0x7FFFFFFFu;

inline uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
inline float float_of(uint32_t x) { return std::bit_cast<float>(x); }
inline uint32_t magnitude(float x) { return bits_of(x) & kMagnitude; }
inline bool is_finite(float x) { return magnitude(x) < kInfinity; }

// What is to be sent: the gradient plus the residual of earlier steps. A null residual means no error feedback.
inline float compensated(const float* g, const float* r, int64_t i) { return r ? g[i] + r[i] : g[i]; }

}  // namespace gradwire
