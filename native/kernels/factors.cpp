#include "kernels/factors.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace gradwire {
namespace {

// Relative to the largest element: keeps columns independent, and is not visible in float32.
constexpr double kRidge = 1e-8;

// x[i] += x[i + half], until one is left.
double sum_by_halves(double* x, int64_t n) {
  while (n > 1) {
    int64_t half = (n + 1) / 2;
    for (int64_t i = 0; i < n - half; ++i) x[i] += x[half + i];
    n = half;
  }
  return n ? x[0] : 0.0;
}

double dot(const double* a, const double* b, double* scratch, int64_t n) {
  for (int64_t i = 0; i < n; ++i) scratch[i] = a[i] * b[i];
  return sum_by_halves(scratch, n);
}

void remove_from(double* a, const double* b, double share, int64_t n) {
  for (int64_t i = 0; i < n; ++i) a[i] -= share * b[i];
}

double largest(const float* p, int64_t n) {
  float most = 0.0f;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::fabs(p[i]));
  return most > 0.0f ? most : 1.0;
}

}  // namespace

void orthonormalise(float* p, int64_t rows, int64_t rank) {
  std::vector<double> columns(static_cast<size_t>(rows * rank)), scratch(static_cast<size_t>(rows));
  auto column = [&](int64_t k) { return columns.data() + k * rows; };
  double scale = largest(p, rows * rank);
  for (int64_t k = 0; k < rank; ++k) {
    double* own = column(k);
    for (int64_t i = 0; i < rows; ++i) own[i] = static_cast<double>(p[i * rank + k]) / scale;
    if (k < rows) own[k] += kRidge;
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t j = 0; j < k; ++j) remove_from(own, column(j), dot(column(j), own, scratch.data(), rows), rows);
    double norm = std::sqrt(dot(own, own, scratch.data(), rows));
    if (norm > 0.0)
      for (int64_t i = 0; i < rows; ++i) own[i] /= norm;
    for (int64_t i = 0; i < rows; ++i) p[i * rank + k] = static_cast<float>(own[i]);
  }
}

void multiply_factors(const float* p, const float* q, float* out, int64_t rows, int64_t columns, int64_t rank) {
  constexpr int64_t kBlock = 256;
  float sums[kBlock];
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t begin = 0; begin < columns; begin += kBlock) {
      int64_t n = std::min(kBlock, columns - begin);
      for (int64_t k = 0; k < rank; ++k) {
        float factor = p[i * rank + k];
        const float* row = q + k * columns + begin;
        if (k == 0)
          for (int64_t j = 0; j < n; ++j) sums[j] = factor * row[j];
        else
          for (int64_t j = 0; j < n; ++j) sums[j] += factor * row[j];
      }
      std::copy(sums, sums + n, out + i * columns + begin);
    }
}

}  // namespace gradwire
