#include "shm_allreduce/add.h"

#include <algorithm>
#include <cstring>

namespace gradwire::shm_allreduce {
namespace {

// Summed in a separate block: `out` may be a row that is still to be read, and the block stays in the first-level
// cache.
constexpr std::size_t kBlock = 8192;

template <class T>
void add(const std::uint8_t* const* rows, std::size_t ranks, std::uint8_t* out, std::size_t count) {
  constexpr std::size_t kMost = kBlock / sizeof(T);
  alignas(64) T total[kMost];
  auto row = [&](std::size_t r) { return reinterpret_cast<const T*>(rows[r]); };
  for (std::size_t at = 0; at < count; at += kMost) {
    std::size_t n = std::min(kMost, count - at);
    const T* first = row(0) + at;
    const T* second = row(1) + at;
    for (std::size_t i = 0; i < n; ++i) total[i] = static_cast<T>(first[i] + second[i]);
    for (std::size_t r = 2; r < ranks; ++r) {
      const T* next = row(r) + at;
      for (std::size_t i = 0; i < n; ++i) total[i] = static_cast<T>(total[i] + next[i]);
    }
    std::memcpy(out + at * sizeof(T), total, n * sizeof(T));
  }
}

}  // namespace

void add_rows(Kind kind, const std::uint8_t* const* rows, std::size_t ranks, std::uint8_t* out, std::size_t count) {
  switch (kind) {
    case Kind::float32: return add<float>(rows, ranks, out, count);
    case Kind::float64: return add<double>(rows, ranks, out, count);
    // Unsigned: signed overflow is undefined, and the bits are the same.
    case Kind::int8: return add<std::uint8_t>(rows, ranks, out, count);
    case Kind::int16: return add<std::uint16_t>(rows, ranks, out, count);
    case Kind::int32: return add<std::uint32_t>(rows, ranks, out, count);
    case Kind::int64: return add<std::uint64_t>(rows, ranks, out, count);
    case Kind::caller: return;
  }
}

}  // namespace gradwire::shm_allreduce
