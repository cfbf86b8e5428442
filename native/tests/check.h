// CHECK(condition) reports file, line and condition when it fails, and the program exits with non-zero.
#pragma once
#include <cstdio>
#include <cstdlib>

namespace gradwire::test {
inline int failures = 0;
inline int finish() {
  std::printf("%s\n", failures ? "FAILED" : "ok");
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
}  // namespace gradwire::test

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition); \
      ++gradwire::test::failures;                                                        \
    }                                                                                    \
  } while (0)
