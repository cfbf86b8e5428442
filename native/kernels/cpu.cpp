#include "kernels/cpu.h"

#include <cstdlib>
#include <string_view>

namespace gradwire {
namespace {

Isa supported() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    return Isa::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return Isa::avx2;
#endif
  return Isa::scalar;
}

Isa asked(Isa most) {
  const char* text = std::getenv("GRADWIRE_ISA");
  if (!text) return most;
  std::string_view name(text);
  Isa wanted = name == "scalar" ? Isa::scalar : name == "avx2" ? Isa::avx2 : most;
  return wanted < most ? wanted : most;
}

}  // namespace

Isa best_isa() {
  static const Isa isa = asked(supported());
  return isa;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::avx512: return "avx512";
    case Isa::avx2: return "avx2";
    default: return "scalar";
  }
}

}  // namespace gradwire
