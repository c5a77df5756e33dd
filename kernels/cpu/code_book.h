// Codes that stand for floats: e4m3, the books of 16 values that four bits choose from, and scales that are powers of two.
#pragma once

#include <cstddef>
#include <cstdint>

#include "appliance_abi.h"
#include "simd.h"

namespace appl {

using Octets = uint8_t __attribute__((vector_size(kWidth)));

constexpr size_t scale_bytes(appl_scale type) { return type == APPL_SCALE_F32 ? 4 : type == APPL_SCALE_F16 ? 2 : 1; }

// Two to the power of (code - 127); the translators refuse 255, which is NaN.
inline float e8m0_to_float(uint8_t code) { return bit_cast<float>(code == 0 ? 0x00400000u : uint32_t{code} << 23); }
inline Floats e8m0_to_floats(Octets codes) {
  const Words words = __builtin_convertvector(codes, Words);
  return bit_cast<Floats>(words == 0 ? splat_word(0x00400000u) : words << 23);
}

// The values of a code, in the order of the codes; appliance.catalog.code_books has the same.
struct Book {
  float values[16];
};
// e2m1 of the OCP formats MXFP4 and NVFP4.
constexpr Book kE2m1 = {{0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f}};
// NF4 and FP4 of bitsandbytes.
constexpr Book kNf4 = {{-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
                        -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,
                        0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f}};
constexpr Book kFp4 = {{0.0f, 0.005208333333f, 0.66666667f, 1.0f, 0.33333333f, 0.5f, 0.16666667f, 0.25f, -0.0f, -0.005208333333f,
                        -0.66666667f, -1.0f, -0.33333333f, -0.5f, -0.16666667f, -0.25f}};
// IQ4_NL and IQ4_XS of ggml (kvalues_iq4nl).
constexpr Book kIq4Nl = {{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}};

constexpr const Book& book_of(appl_layout layout) {
  return layout == APPL_E2M1 ? kE2m1 : layout == APPL_NF4 ? kNf4 : layout == APPL_FP4 ? kFp4 : kIq4Nl;
}

// The e4m3 codes in the highest byte of each word; NaN codes are taken for numbers, and refused by the translators. The lowest exponent
// has no implicit one: its values are twice what they would be with it, minus the one.
inline Floats e4m3_to_floats(Words words) {
  const Words magnitude = words >> 4 & 0x07f00000u;
  const Floats normal = bit_cast<Floats>(magnitude + (120u << 23));
  const Floats value = magnitude < 0x00800000u ? normal + normal - 0x1p-6f : normal;
  return bit_cast<Floats>(bit_cast<Words>(value) | (words & 0x80000000u));
}

// The values of the codes in the lowest four bits of each word; the other bits may be anything.
template <appl_layout Layout>
Floats look_up(Words codes) {
  constexpr const float* kValues = book_of(Layout).values;
#if APPL_WIDTH == 16 && !defined(APPL_EMULATE_AVX512)
  // With a mask of all lanes, as GCC 12 warns that the plain form reads an undefined vector, which it does not.
  return bit_cast<Floats>(_mm512_maskz_permutexvar_ps(0xffff, bit_cast<__m512i>(codes), _mm512_loadu_ps(kValues)));
#elif APPL_WIDTH == 8
  const __m256i places = bit_cast<__m256i>(codes);
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(kValues), places);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(kValues + 8), places);
  return bit_cast<Floats>(_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(places, 28))));
#else
  Floats values;
  for (int i = 0; i < kWidth; ++i) values[i] = kValues[codes[i] & 15u];
  return values;
#endif
}

// The value of one code of a layout whose codes stand for floats.
inline float value_of(appl_layout layout, int code) {
  return layout == APPL_F8 ? e4m3_to_floats(splat_word(uint32_t(code) << 24))[0] : book_of(layout).values[code];
}

}  // namespace appl
