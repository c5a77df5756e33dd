// Vectors of f32 at the width of the level: the compiler's vector extension, and the few intrinsics that it cannot express.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(APPL_EMULATE_AVX512)
#include "emulated_avx512.h"
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__) || defined(APPL_EMULATE_AVX512)
#define APPL_WIDTH 16
#elif defined(__AVX2__)
#define APPL_WIDTH 8
#else
#define APPL_WIDTH 4
#endif

#if defined(__AVX512BF16__) || defined(APPL_EMULATE_AVX512)
#define APPL_BF16_DOT 1
#else
#define APPL_BF16_DOT 0
#endif

#if defined(__AVX512VNNI__) || defined(APPL_EMULATE_AVX512)
#define APPL_VNNI 1
#else
#define APPL_VNNI 0
#endif

#if defined(__AMX_TILE__) || defined(APPL_EMULATE_AMX)
#define APPL_AMX 1
#else
#define APPL_AMX 0
#endif

namespace appl {

constexpr int kWidth = APPL_WIDTH;
constexpr int kPanel = 16;  // rows of a weight that are interleaved
constexpr int kPanelVectors = kPanel / kWidth;

using Floats = float __attribute__((vector_size(kWidth * 4)));
using Ints = int32_t __attribute__((vector_size(kWidth * 4)));
using Words = uint32_t __attribute__((vector_size(kWidth * 4)));
using Halves = uint16_t __attribute__((vector_size(kWidth * 2)));

// This does not use memcpy: sums whose address is taken that way stay in memory, and every product of a tile then costs two moves.
template <class To, class From>
inline To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

template <class V = Floats>
inline V load(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof(V));
  return v;
}

template <class V>
inline void store(void* to, const V& v) {
  std::memcpy(to, &v, sizeof(V));
}

inline Floats splat(float x) { return x - Floats{}; }
inline Words splat_word(uint32_t x) { return x - Words{}; }
inline Ints splat_int(int32_t x) { return x - Ints{}; }
inline Floats to_floats(Ints x) { return __builtin_convertvector(x, Floats); }
inline Ints to_ints(Floats x) { return __builtin_convertvector(x, Ints); }

// Rounds to nearest even by adding 1.5 * 2^23; |x| < 2^22.
inline Ints round_to_ints(Floats x) { return bit_cast<Ints>(x + 12582912.0f) - 0x4b400000; }

// a if it is more (less) than b, so b if either is NaN. The instruction is spelled out, because the compiler makes a comparison and a
// blend of the expression below.
#if APPL_WIDTH >= 8 && !defined(APPL_EMULATE_AVX512)
inline Floats vmax(Floats a, Floats b) {
  Floats result;
  asm("vmaxps %2, %1, %0" : "=v"(result) : "v"(a), "v"(b));
  return result;
}
inline Floats vmin(Floats a, Floats b) {
  Floats result;
  asm("vminps %2, %1, %0" : "=v"(result) : "v"(a), "v"(b));
  return result;
}
#else
inline Floats vmax(Floats a, Floats b) { return a > b ? a : b; }
inline Floats vmin(Floats a, Floats b) { return a < b ? a : b; }
#endif

inline Floats vabs(Floats a) { return bit_cast<Floats>(bit_cast<Words>(a) & 0x7fffffffu); }

// sum + a * b. The instruction is spelled out, because the compiler chooses the form that overwrites a factor, and then runs
// out of registers in the tiles.
inline Floats multiply_add(Floats sum, Floats a, Floats b) {
#if defined(__FMA__) && !defined(APPL_EMULATE_AVX512)
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
#else
  return sum + a * b;
#endif
}

// Lane i becomes lane i + Distance.
template <int Distance, class V>
inline V rotate(V v) {
  Ints order;
  for (int i = 0; i < kWidth; ++i) order[i] = (i + Distance) % kWidth;
  return __builtin_shuffle(v, order);
}

// Reduces all lanes by `f`, in pairs.
template <int Distance = kWidth / 2, class V, class F>
inline auto reduce(V v, F&& f) {
  v = f(v, rotate<Distance>(v));
  if constexpr (Distance == 1) return v[0];
  else return reduce<Distance / 2>(v, f);
}

inline float reduce_add(Floats v) {
  return reduce(v, [](Floats a, Floats b) { return a + b; });
}

inline float reduce_max(Floats v) {
  return reduce(v, [](Floats a, Floats b) { return vmax(a, b); });
}

// --- 16-bit floats ---------------------------------------------------------------------------------------------------

inline float bf16_to_float(uint16_t x) { return bit_cast<float>(uint32_t{x} << 16); }

// Rounds to nearest even; a NaN stays a NaN.
inline uint16_t float_to_bf16(float x) {
  uint32_t bits = bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline Words widen(Halves x) { return __builtin_convertvector(x, Words); }
inline Floats bf16_to_floats(Halves x) { return bit_cast<Floats>(widen(x) << 16); }

// Rounds to nearest even, into the lower halves. Not for NaN.
inline Words numbers_to_bf16(Floats x) {
  const Words bits = bit_cast<Words>(x);
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// Rounds to nearest even. Subnormals may become zero, as in products of bf16.
inline Halves floats_to_bf16(Floats x) {
#if APPL_BF16_DOT
  return bit_cast<Halves>(_mm512_cvtneps_pbh(bit_cast<__m512>(x)));
#else
  Words bits = bit_cast<Words>(x), rounded = numbers_to_bf16(x);
  Words is_nan = Words((bits & 0x7fffffffu) > 0x7f800000u);
  return __builtin_convertvector((rounded & ~is_nan) | (((bits >> 16) | 0x40) & is_nan), Halves);
#endif
}

inline float f16_to_float(uint16_t half) {
  uint32_t magnitude = uint32_t(half & 0x7fff) << 13;
  float value = bit_cast<float>(magnitude) * 0x1p112f;                             // exact for subnormals too
  if (magnitude >= 0x0f800000u) value = bit_cast<float>(magnitude | 0x7f800000u);  // infinity, NaN
  return bit_cast<float>(bit_cast<uint32_t>(value) | (uint32_t(half & 0x8000) << 16));
}

// Rounds to nearest even; too large values become infinity.
inline uint16_t float_to_f16(float x) {
  uint32_t bits = bit_cast<uint32_t>(x), sign = (bits >> 16) & 0x8000;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return uint16_t(sign | 0x7e00);
  if (bits >= 0x477ff000u) return uint16_t(sign | 0x7c00);
  if (bits < 0x38800000u) {  // subnormal: the addition rounds at the right bit
    float rounded = bit_cast<float>(bits) + 0.5f;
    return uint16_t(sign | (bit_cast<uint32_t>(rounded) - 0x3f000000u));
  }
  return uint16_t(sign | ((bits - 0x38000000u + 0xfff + ((bits >> 13) & 1)) >> 13));
}

inline Floats f16_to_floats(Halves x) {
#if APPL_WIDTH == 16
  return bit_cast<Floats>(_mm512_maskz_cvtph_ps(0xffff, bit_cast<__m256i>(x)));
#elif defined(__F16C__)
  return bit_cast<Floats>(_mm256_cvtph_ps(bit_cast<__m128i>(x)));
#else
  Floats result;
  for (int i = 0; i < kWidth; ++i) result[i] = f16_to_float(x[i]);
  return result;
#endif
}

inline Halves floats_to_f16(Floats x) {
#if APPL_WIDTH == 16
  return bit_cast<Halves>(_mm512_maskz_cvtps_ph(0xffff, bit_cast<__m512>(x), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  return bit_cast<Halves>(_mm256_cvtps_ph(bit_cast<__m256>(x), _MM_FROUND_TO_NEAREST_INT));
#else
  Halves result;
  for (int i = 0; i < kWidth; ++i) result[i] = float_to_f16(x[i]);
  return result;
#endif
}

// --- functions -------------------------------------------------------------------------------------------------------

// e^x to about 2 ulp; 0 below -87.3, clamped above 88. Range reduction and polynomial of Cephes' expf.
inline Floats vexp(Floats x) {
  const Floats low = splat(-87.336f);
  Floats clamped = vmin(vmax(x, low), splat(88.0f));
  Floats shifted = clamped * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer in the low bits
  Floats n = shifted - 12582912.0f;
  Floats r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
  Floats p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  Floats result = bit_cast<Floats>(bit_cast<Words>(p) + (bit_cast<Words>(shifted) << 23));
  return x < low ? Floats{} : result;
}

// 2^r on [-0.5, 0.5], for the function below: the polynomials of least relative error with p(0) = 1.
template <int Degree>
inline Floats fraction_exp2(Floats r) {
  static_assert(Degree == 3 || Degree == 5);
  Floats p;
  if constexpr (Degree == 3) {
    p = splat(0.05500893294811249f);
    p = p * r + 0.2422109693288803f;
    p = p * r + 0.6932829022407532f;
  } else {
    p = splat(0.001326472731307149f);
    p = p * r + 0.009671512991189957f;
    p = p * r + 0.05550733581185341f;
    p = p * r + 0.24022242426872253f;
    p = p * r + 0.6931470036506653f;
  }
  return p * r + 1.0f;
}

// 2^x with a relative error of 2^-23 (Degree 5) or 2^-13 (Degree 3, for bf16 results); x <= 0. Below -126 it may be 0, below -150 it is 0.
template <int Degree>
inline Floats vexp2(Floats x) {
#if APPL_WIDTH == 16 && !defined(APPL_EMULATE_AVX512)
  const __m512 clamped = bit_cast<__m512>(vmax(x, splat(-200.0f)));  // minus infinity would give NaN in the subtraction
  const __m512 whole = _mm512_maskz_roundscale_ps(0xffff, clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Floats r = bit_cast<Floats>(clamped) - bit_cast<Floats>(whole);
  return bit_cast<Floats>(_mm512_maskz_scalef_ps(0xffff, bit_cast<__m512>(fraction_exp2<Degree>(r)), whole));
#else
  const Floats low = splat(-126.0f), clamped = vmax(x, low);
  const Floats shifted = clamped + 12582912.0f;  // as in vexp
  const Floats p = fraction_exp2<Degree>(clamped - (shifted - 12582912.0f));
  const Floats result = bit_cast<Floats>(bit_cast<Words>(p) + (bit_cast<Words>(shifted) << 23));
  return x < low ? Floats{} : result;
#endif
}

inline Floats vsigmoid(Floats x) { return 1.0f / (1.0f + vexp(-x)); }

inline Floats vtanh(Floats x) {
  Floats magnitude = vabs(x);
  Floats e = vexp(-2.0f * magnitude);
  Floats large = (1.0f - e) / (1.0f + e);
  Floats square = x * x;  // near 0 the quotient would cancel, so this uses an odd polynomial
  Floats small = magnitude * (1.0f + square * (-0.333333333f + square * (0.133333333f - square * 0.0539682540f)));
  Floats result = magnitude < 0.1f ? small : large;
  return x < 0.0f ? -result : result;
}

// Abramowitz and Stegun 7.1.26 has an absolute error of 1.5e-7.
inline Floats verf(Floats x) {
  Floats magnitude = vabs(x);
  Floats t = 1.0f / (1.0f + 0.3275911f * magnitude);
  Floats p = splat(1.061405429f);
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  Floats result = 1.0f - p * t * vexp(-magnitude * magnitude);
  return x < 0.0f ? -result : result;
}

}  // namespace appl
