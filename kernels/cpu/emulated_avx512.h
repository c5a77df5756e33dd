// The AVX-512 instructions that simd.h and the tiles use, in plain C++: a test-only build runs the logic of the AVX-512
// sources on machines without them. Semantics follow the instruction set reference.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

namespace emulated {

template <class T, int N>
struct Lanes {
  T v[N];
};

template <class T, int N, class From>
inline Lanes<T, N> lanes(const From& from) {
  static_assert(sizeof(Lanes<T, N>) == sizeof(From));
  Lanes<T, N> to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <class To, class T, int N>
inline To vector(const Lanes<T, N>& from) {
  static_assert(sizeof(To) == sizeof(from));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

using F512 = float __attribute__((vector_size(64)));
using I512 = long long __attribute__((vector_size(64)));

inline F512 convert_halves(__m256i x) {
  Lanes<float, 16> out;
  const auto in = lanes<uint16_t, 16>(x);
  for (int i = 0; i < 16; ++i) out.v[i] = _cvtsh_ss(in.v[i]);
  return vector<F512>(out);
}

inline __m256i convert_to_halves(F512 x) {
  Lanes<uint16_t, 16> out;
  const auto in = lanes<float, 16>(x);
  for (int i = 0; i < 16; ++i) out.v[i] = uint16_t(_cvtss_sh(in.v[i], 0));
  return vector<__m256i>(out);
}

// vcvtneps2bf16: rounds to nearest even, takes subnormals for zero, and makes not-a-number quiet.
inline __m256i convert_to_bf16(F512 x) {
  Lanes<uint16_t, 16> out;
  const auto in = lanes<uint32_t, 16>(x);
  for (int i = 0; i < 16; ++i) {
    const uint32_t bits = in.v[i], magnitude = bits & 0x7fffffff;
    const uint32_t rounded = magnitude > 0x7f800000 ? bits | 0x400000 : bits + 0x7fff + ((bits >> 16) & 1);
    out.v[i] = uint16_t((magnitude < 0x800000 ? bits & 0x80000000 : rounded) >> 16);
  }
  return vector<__m256i>(out);
}

// vpdpbusd: unsigned bytes of b times signed bytes of c, added in fours.
inline I512 dot_bytes(I512 a, I512 b, I512 c) {
  auto sum = lanes<int32_t, 16>(a);
  const auto u = lanes<uint8_t, 64>(b);
  const auto s = lanes<int8_t, 64>(c);
  for (int i = 0; i < 64; ++i) sum.v[i / 4] += int32_t{u.v[i]} * s.v[i];
  return vector<I512>(sum);
}

// vdpbf16ps: the odd product is added first, then the even one, with no fused rounding.
inline F512 dot_bf16(F512 a, I512 b, I512 c) {
  auto sum = lanes<float, 16>(a);
  const auto x = lanes<uint16_t, 32>(b), y = lanes<uint16_t, 32>(c);
  const auto widen = [](uint16_t half) {
    const uint32_t bits = uint32_t{half} << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  };
  for (int i = 0; i < 16; ++i) {
    sum.v[i] += widen(x.v[2 * i + 1]) * widen(y.v[2 * i + 1]);
    sum.v[i] += widen(x.v[2 * i]) * widen(y.v[2 * i]);
  }
  return vector<F512>(sum);
}

// vpmaddwd: signed words multiplied and added in pairs.
inline I512 multiply_words(I512 a, I512 b) {
  Lanes<int32_t, 16> out{};
  const auto x = lanes<int16_t, 32>(a), y = lanes<int16_t, 32>(b);
  for (int i = 0; i < 32; ++i) out.v[i / 2] += int32_t{x.v[i]} * y.v[i];
  return vector<I512>(out);
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
