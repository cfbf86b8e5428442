#include "kernels/cpu.h"
#include "tests/check.h"

#include <cstring>

int main() {
  CHECK(std::strlen(gradwire::isa_name(gradwire::best_isa())) > 0);
  return gradwire::test::finish();
}
