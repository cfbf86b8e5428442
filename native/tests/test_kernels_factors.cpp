// Low-rank factors: the basis is orthonormal, the product equals its definition, and nothing is read or written
// outside.
#include <cmath>
#include <random>
#include <vector>

#include "kernels/factors.h"
#include "tests/check.h"

using namespace gradwire;

namespace {

std::vector<float> drawn(std::mt19937& random, int64_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& x : values) x = normal(random);
  return values;
}

void test_basis(std::vector<float> p, int64_t rows, int64_t rank) {
  orthonormalise(p.data(), rows, rank);
  for (int64_t a = 0; a < rank; ++a)
    for (int64_t b = 0; b < rank; ++b) {
      double sum = 0;
      for (int64_t i = 0; i < rows; ++i) sum += double(p[size_t(i * rank + a)]) * p[size_t(i * rank + b)];
      CHECK(std::fabs(sum - (a == b)) < 1e-6);
    }
}

void test_product(std::mt19937& random, int64_t rows, int64_t columns, int64_t rank) {
  auto p = drawn(random, rows * rank), q = drawn(random, rank * columns);
  std::vector<float> out(static_cast<size_t>(rows * columns));
  multiply_factors(p.data(), q.data(), out.data(), rows, columns, rank);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      volatile float sum = p[size_t(i * rank)] * q[size_t(j)];  // volatile: one operation at a time
      for (int64_t k = 1; k < rank; ++k) {
        volatile float product = p[size_t(i * rank + k)] * q[size_t(k * columns + j)];
        sum = sum + product;
      }
      CHECK(out[size_t(i * columns + j)] == sum);
    }
}

}  // namespace

int main() {
  std::mt19937 random(7);
  for (int64_t rank : {1, 2, 4, 7})
    for (int64_t rows : {7, 8, 63, 64, 513}) {
      test_basis(drawn(random, rows * rank), rows, rank);
      test_basis(std::vector<float>(static_cast<size_t>(rows * rank), 0.0f), rows, rank);
      test_basis(std::vector<float>(static_cast<size_t>(rows * rank), 3.0f), rows, rank);
      for (int64_t columns : {1, 15, 256, 257, 600}) test_product(random, rows, columns, rank);
    }
  return test::finish();
}
