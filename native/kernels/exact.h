// Sparse selection of exactly the k largest elements, with error feedback as in select.h.
#pragma once
#include "kernels/select.h"

namespace gradwire {

// The k largest |a| (not finite counts as largest), ties to the lower index. k <= out.capacity.
Selected select_exact(const Gradient& in, int64_t k, const Pairs& out, int threads);

// The k largest |a| of those that reach the smallest normal float, in select_exact's choice; fewer where there are no
// more. About as fast as `select`.
Selected select_largest(const Gradient& in, int64_t k, const Pairs& out, int threads);

}  // namespace gradwire
