// The instruction sets of this machine, detected once, and the attributes of functions that use them.
#pragma once

#if defined(__x86_64__)
#define GRADWIRE_X86 1
#define GRADWIRE_AVX2 __attribute__((target("avx2,f16c,bmi,bmi2,popcnt")))
#define GRADWIRE_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c,bmi,bmi2,popcnt")))
#endif

namespace gradwire {

// How far ahead of a stream to prefetch, in floats: the next 4 KiB page, where the hardware's own prefetching stops
// and restarts. Measured 3-8 % on the fused selection and the quantisers.
constexpr int kAhead = 1024;

enum class Isa { scalar, avx2, avx512 };

// The best set this machine runs, unless GRADWIRE_ISA=scalar|avx2|avx512 or set_isa asks for less.
Isa best_isa();
const char* isa_name(Isa isa);

// For tests and benchmarks: run on this set from now on, or on the best one below it that the machine has.
Isa set_isa(Isa wanted);

}  // namespace gradwire
