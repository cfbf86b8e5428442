// Which instruction sets this machine has, asked once.
#pragma once

namespace gradwire {

enum class Isa { scalar, avx2, avx512 };

// The best set this machine runs, unless GRADWIRE_ISA=scalar|avx2|avx512 asks for less.
Isa best_isa();
const char* isa_name(Isa isa);

}  // namespace gradwire
