// A range of a selection per instruction set; select.cpp chooses and threads them.
#pragma once
#include "kernels/cpu.h"
#include "kernels/floats.h"
#include "kernels/select.h"

namespace gradwire {

// Indices are absolute. `limit` is the bits of a magnitude.
Selected select_scalar(const Gradient& in, int64_t begin, int64_t end, uint32_t limit, const Pairs& out);
Selected select_avx2(const Gradient& in, int64_t begin, int64_t end, uint32_t limit, const Pairs& out);
Selected select_avx512(const Gradient& in, int64_t begin, int64_t end, uint32_t limit, const Pairs& out);

}  // namespace gradwire
