// noise.h for eight and for sixteen elements from `lane` on.
#pragma once
#include "kernels/cpu.h"
#include "kernels/noise.h"

#if defined(GRADWIRE_X86)
#include <immintrin.h>

namespace gradwire {

GRADWIRE_AVX2 inline __m256i noise_bits8(NoiseKey key, uint32_t lane) {
  const __m256i iota = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  __m256i x = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(lane)), iota);
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(kLaneStep)));
  x = _mm256_add_epi32(x, _mm256_set1_epi32(static_cast<int>(key.add)));
  x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 16)), _mm256_set1_epi32(static_cast<int>(kMix1)));
  x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 15)), _mm256_set1_epi32(static_cast<int>(kMix2)));
  return _mm256_xor_si256(_mm256_xor_si256(x, _mm256_srli_epi32(x, 16)), _mm256_set1_epi32(static_cast<int>(key.flip)));
}

GRADWIRE_AVX2 inline __m256 noise8(NoiseKey key, uint32_t lane) {
  return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(noise_bits8(key, lane), 8)), _mm256_set1_ps(0x1p-24f));
}

GRADWIRE_AVX512 inline __m512i noise_bits16(NoiseKey key, uint32_t lane) {
  const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i x = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(lane)), iota);
  x = _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(kLaneStep)));
  x = _mm512_add_epi32(x, _mm512_set1_epi32(static_cast<int>(key.add)));
  x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 16)), _mm512_set1_epi32(static_cast<int>(kMix1)));
  x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 15)), _mm512_set1_epi32(static_cast<int>(kMix2)));
  return _mm512_xor_si512(_mm512_xor_si512(x, _mm512_srli_epi32(x, 16)), _mm512_set1_epi32(static_cast<int>(key.flip)));
}

GRADWIRE_AVX512 inline __m512 noise16(NoiseKey key, uint32_t lane) {
  return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(noise_bits16(key, lane), 8)), _mm512_set1_ps(0x1p-24f));
}

}  // namespace gradwire
#endif
