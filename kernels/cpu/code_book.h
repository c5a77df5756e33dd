// Codes that stand for floats: e4m3, the books of 16 values that four bits choose from, and scales that are powers of two.
#pragma once

#include <cstddef>
#include <cstdint>

#include "appliance_abi.h"
#include "simd.h"

namespace appl {

using Octets = uint8_t __attribute__((vector_size(kWidth)));
using HalfWords = int16_t __attribute__((vector_size(kWidth * 2)));

constexpr size_t scale_bytes(appl_scale type) { return type == APPL_SCALE_F32 ? 4 : type == APPL_SCALE_F16 ? 2 : 1; }

// Two to the power of (code - 127); the translators refuse 255, which is NaN.
inline float e8m0_to_float(uint8_t code) { return bit_cast<float>(code == 0 ? 0x00400000u : uint32_t{code} << 23); }
// One instruction, for which the compiler would take dozens.
inline Words widen(Octets x) {
#if APPL_WIDTH == 16 && !defined(APPL_EMULATE_AVX512)
  return bit_cast<Words>(_mm512_maskz_cvtepu8_epi32(0xffff, bit_cast<__m128i>(x)));
#elif APPL_WIDTH == 8
  return bit_cast<Words>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bit_cast<long long>(x))));
#else
  return __builtin_convertvector(x, Words);
#endif
}

inline Floats e8m0_to_floats(Octets codes) {
  const Words words = widen(codes) << 23, least = splat_word(0x00400000u);
  return bit_cast<Floats>(words > least ? words : least);
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

// The e4m3 codes in the upper bytes of half words, times kE4m3Unit: their bits at the places that f16 has for them, whose conversion
// takes subnormals as fast as others. NaN codes are taken for numbers, and refused by the translators.
constexpr float kE4m3Unit = 0x1p-8f;
inline Floats e4m3_to_floats(HalfWords codes) { return f16_to_floats(bit_cast<Halves>((codes >> 1) & int16_t(0xbf80))); }

// Whether a book's codes are a sign and three bits of a magnitude.
constexpr bool has_sign_bit(appl_layout layout) { return layout == APPL_E2M1 || layout == APPL_FP4; }

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
  if constexpr (has_sign_bit(Layout)) return bit_cast<Floats>(bit_cast<Words>(low) ^ (codes << 28 & 0x80000000u));
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
  if (layout != APPL_F8) return book_of(layout).values[code];
  return e4m3_to_floats(HalfWords{} + int16_t(uint16_t(code << 8)))[0] / kE4m3Unit;
}

// --- books of integers -----------------------------------------------------------------------------------------------

// Whether all values of a layout's book are small multiples of one unit, so that int8 inputs can be multiplied with integers.
constexpr bool is_integer_book(appl_layout layout) { return layout == APPL_E2M1 || layout == APPL_IQ4_NL; }
constexpr float book_unit(appl_layout layout) { return layout == APPL_E2M1 ? 0.5f : 1.0f; }
// What is added to the integers of a book, so that they are not negative: the zero point of its products.
constexpr int book_zero_point(appl_layout layout) { return layout == APPL_E2M1 ? 12 : 128; }

struct ByteBook {
  alignas(16) uint8_t values[16];
};
constexpr ByteBook byte_book_of(appl_layout layout) {
  ByteBook book{};
  for (int i = 0; i < 16; ++i) book.values[i] = uint8_t(int(book_of(layout).values[i] / book_unit(layout)) + book_zero_point(layout));
  return book;
}

// The integers of the codes in each byte, which are below 16, plus the zero point.
template <appl_layout Layout>
Words look_up_bytes(Words codes) {
  static constexpr ByteBook kBook = byte_book_of(Layout);
#if APPL_WIDTH == 16 && !defined(APPL_EMULATE_AVX512)
  const __m512i book = _mm512_maskz_broadcast_i32x4(0xffff, _mm_load_si128(reinterpret_cast<const __m128i*>(kBook.values)));
  return bit_cast<Words>(_mm512_shuffle_epi8(book, bit_cast<__m512i>(codes)));
#elif APPL_WIDTH == 8
  const __m256i book = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(kBook.values)));
  return bit_cast<Words>(_mm256_shuffle_epi8(book, bit_cast<__m256i>(codes)));
#else
  using Bytes = uint8_t __attribute__((vector_size(kWidth * 4)));
  Bytes bytes = bit_cast<Bytes>(codes);
  for (int i = 0; i < kWidth * 4; ++i) bytes[i] = kBook.values[bytes[i] & 15];
  return bit_cast<Words>(bytes);
#endif
}

}  // namespace appl
