// Low-rank factors: every rank computes them from the same bytes, and replicas must stay identical on different
// processors. Each result is defined operation by operation (products are never fused into sums), for any vector width;
// linear-algebra libraries choose their order by processor.
#pragma once
#include <cstdint>

namespace gradwire {

// p (rows x rank, row-major) becomes an orthonormal basis of its columns: Gram-Schmidt in double, twice for each
// column, sums by halves. A column that depends on those before it becomes some other direction, never zero.
void orthonormalise(float* p, int64_t rows, int64_t rank);

// out (rows x columns) = p (rows x rank) times q (rank x columns), each sum in the order of the rank.
void multiply_factors(const float* p, const float* q, float* out, int64_t rows, int64_t columns, int64_t rank);

}  // namespace gradwire
