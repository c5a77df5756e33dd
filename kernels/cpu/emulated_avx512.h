// The AVX-512 instructions that simd.h and the tiles use, on those of AVX2: a test-only build runs the logic of the AVX-512
// sources on machines without them. Semantics follow the instruction set reference.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

namespace emulated {

using F512 = float __attribute__((vector_size(64)));
using I512 = long long __attribute__((vector_size(64)));
using Words512 = uint32_t __attribute__((vector_size(64)));
using Halves256 = uint16_t __attribute__((vector_size(32)));

// A register as two AVX2 registers, which compile and run much faster than loops over elements.
struct Floats2 {
  __m256 low, high;
};
struct Words2 {
  __m256i low, high;
};
struct Halves2 {
  __m128i low, high;
};

inline F512 convert_halves(__m256i x) {
  const auto in = __builtin_bit_cast(Halves2, x);
  return __builtin_bit_cast(F512, Floats2{_mm256_cvtph_ps(in.low), _mm256_cvtph_ps(in.high)});
}

inline __m256i convert_to_halves(F512 x) {
  const auto in = __builtin_bit_cast(Floats2, x);
  return __builtin_bit_cast(__m256i, Halves2{_mm256_cvtps_ph(in.low, 0), _mm256_cvtps_ph(in.high, 0)});
}

// vcvtneps2bf16: rounds to nearest even, treats subnormals as zero, and makes NaN quiet.
inline __m256i convert_to_bf16(F512 x) {
  const Words512 bits = (Words512)x, magnitude = bits & 0x7fffffffu;
  const Words512 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const Words512 number = magnitude < 0x800000u ? bits & 0x80000000u : rounded;
  const Words512 result = magnitude > 0x7f800000u ? bits | 0x400000u : number;
  return (__m256i) __builtin_convertvector(result >> 16, Halves256);
}

// vpdpbusd: unsigned bytes of b times signed bytes of c, added in fours. Even and odd bytes are separate words, which cannot saturate.
inline __m256i dot_bytes(__m256i sum, __m256i b, __m256i c) {
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(b, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(c, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(b, 8), _mm256_srai_epi16(c, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
inline I512 dot_bytes(I512 a, I512 b, I512 c) {
  const auto sum = __builtin_bit_cast(Words2, a), u = __builtin_bit_cast(Words2, b), s = __builtin_bit_cast(Words2, c);
  return __builtin_bit_cast(I512, Words2{dot_bytes(sum.low, u.low, s.low), dot_bytes(sum.high, u.high, s.high)});
}

// vdpbf16ps: the odd product is added first, then the even one. A product of two bf16 is exact, so that fusing changes nothing.
inline F512 dot_bf16(F512 a, I512 b, I512 c) {
  const Words512 x = (Words512)b, y = (Words512)c;
  a += (F512)(x & 0xffff0000u) * (F512)(y & 0xffff0000u);
  return a + (F512)(x << 16) * (F512)(y << 16);
}

// vpmaddwd: signed words multiplied and added in pairs.
inline I512 multiply_words(I512 a, I512 b) {
  const auto x = __builtin_bit_cast(Words2, a), y = __builtin_bit_cast(Words2, b);
  return __builtin_bit_cast(I512, Words2{_mm256_madd_epi16(x.low, y.low), _mm256_madd_epi16(x.high, y.high)});
}

}  // namespace emulated

#define __m512 emulated::F512
#define __m512i emulated::I512
#define __m512bh emulated::I512
#define _mm512_maskz_cvtph_ps(mask, x) emulated::convert_halves(x)
#define _mm512_maskz_cvtps_ph(mask, x, rounding) emulated::convert_to_halves(x)
#define _mm512_cvtneps_pbh emulated::convert_to_bf16
#define _mm512_dpbusd_epi32 emulated::dot_bytes
#define _mm512_dpbf16_ps emulated::dot_bf16
#define _mm512_madd_epi16 emulated::multiply_words
