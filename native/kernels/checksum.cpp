// The instruction takes 3 cycles but can start every cycle, so three adjacent ranges are summed at once and joined: a
// CRC is linear, so shifting it past the k bytes that follow is a fixed linear map, stored as four tables.
#include "kernels/checksum.h"

#include <array>
#include <cstring>

#include "kernels/cpu.h"

#if defined(GRADWIRE_X86)
#include <immintrin.h>
#endif

namespace gradwire {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;

constexpr std::array<uint32_t, 256> byte_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = c >> 1 ^ (c & 1 ? kPolynomial : 0);
    table[i] = c;
  }
  return table;
}
constexpr auto kByte = byte_table();

uint32_t sum_scalar(uint32_t c, const uint8_t* data, int64_t n) {
  for (int64_t i = 0; i < n; ++i) c = c >> 8 ^ kByte[(c ^ data[i]) & 255];
  return c;
}

#if defined(GRADWIRE_X86)
constexpr int64_t kLane = 4096;

// The map "followed by kLane zero bytes": its value for each byte at each position.
struct Shift {
  std::array<std::array<uint32_t, 256>, 4> table;

  Shift() {
    std::array<uint32_t, 32> column{};
    for (int bit = 0; bit < 32; ++bit) {
      uint32_t c = 1u << bit;
      for (int64_t i = 0; i < kLane; ++i) c = c >> 8 ^ kByte[c & 255];
      column[static_cast<size_t>(bit)] = c;
    }
    for (size_t place = 0; place < 4; ++place)
      for (size_t value = 0; value < 256; ++value) {
        uint32_t c = 0;
        for (size_t bit = 0; bit < 8; ++bit)
          if (value >> bit & 1) c ^= column[8 * place + bit];
        table[place][value] = c;
      }
  }
  uint32_t operator()(uint32_t c) const {
    return table[0][c & 255] ^ table[1][c >> 8 & 255] ^ table[2][c >> 16 & 255] ^ table[3][c >> 24];
  }
};

uint64_t word_at(const uint8_t* data) {
  uint64_t word;
  std::memcpy(&word, data, 8);
  return word;
}

__attribute__((target("sse4.2"))) uint32_t sum_sse42(uint32_t start, const uint8_t* data, int64_t n) {
  static const Shift shift;
  uint64_t c = start;
  for (; n >= 3 * kLane; n -= 3 * kLane, data += 3 * kLane) {
    uint64_t second = 0, third = 0;
    for (int64_t i = 0; i < kLane; i += 8) {
      c = _mm_crc32_u64(c, word_at(data + i));
      second = _mm_crc32_u64(second, word_at(data + kLane + i));
      third = _mm_crc32_u64(third, word_at(data + 2 * kLane + i));
    }
    c = shift(shift(static_cast<uint32_t>(c)) ^ static_cast<uint32_t>(second)) ^ third;
  }
  for (; n >= 8; n -= 8, data += 8) c = _mm_crc32_u64(c, word_at(data));
  return sum_scalar(static_cast<uint32_t>(c), data, n);
}
#endif

}  // namespace

uint32_t crc32c(const uint8_t* data, int64_t n) {
#if defined(GRADWIRE_X86)
  if (best_isa() != Isa::scalar) return ~sum_sse42(~0u, data, n);
#endif
  return ~sum_scalar(~0u, data, n);
}

}  // namespace gradwire
