// Sums of rows, element by element from the first row to the last: the same order on every rank, so the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gradwire::shm_allreduce {

// Integers wrap around. Other types and operators (half precision, complex numbers, max) are reduced by the caller.
enum class Kind : std::uint8_t { caller, float32, float64, int8, int16, int32, int64 };

// `out` may be one of the rows. `count` is in elements.
void add_rows(Kind kind, const std::uint8_t* const* rows, std::size_t ranks, std::uint8_t* out, std::size_t count);

}  // namespace gradwire::shm_allreduce
