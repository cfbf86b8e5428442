#include "kernels/cpu.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace gradwire {
namespace {

Isa supported() {
#if defined(GRADWIRE_X86)
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") &&
              __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    return Isa::avx512;
  if (avx2) return Isa::avx2;
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

std::atomic<Isa>& active() {
  static std::atomic<Isa> isa = asked(supported());
  return isa;
}

}  // namespace

Isa best_isa() { return active().load(std::memory_order_relaxed); }

Isa set_isa(Isa wanted) {
  static const Isa most = supported();
  active() = wanted < most ? wanted : most;
  return best_isa();
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::avx512: return "avx512";
    case Isa::avx2: return "avx2";
    default: return "scalar";
  }
}

}  // namespace gradwire
