// The integer products of the weight types, and the steps that all tiles over them share.
//
// They are in an unnamed namespace: the compiler inlines fewer functions with external linkage, and tiles of several rows would then
// take up to a seventh longer.
#pragma once

#include <type_traits>

#include "code_book.h"
#include "planes.h"
#include "tile.h"
#include "vnni.h"

namespace appl {
namespace {

// sum + a * b on words, added in pairs to 32 bits; and on unsigned and signed bytes, added in pairs to 16 bits. The instructions are
// spelled out as in multiply_add: the compiler would compute all products of a tile first, and spill them.
#if APPL_WIDTH >= 8 && !defined(APPL_EMULATE_AVX512)
inline Ints add_word_products(Ints sum, Words a, Words b) {
  Ints product;
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(sum), "=&v"(product) : "v"(a), "v"(b));
  return sum;
}
inline Shorts add_byte_products(Shorts sum, Words a, Words b) {
  Shorts product;
  asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+v"(sum), "=&v"(product) : "v"(a), "v"(b));
  return sum;
}
#else
inline Ints add_word_products(Ints sum, Words a, Words b) { return sum + multiply_pairs(Ints(a), Ints(b)); }
#endif

// sum + (a * b + c * d) * factor on unsigned and signed bytes; the four products of a lane's word must fit 16 bits.
#if APPL_WIDTH >= 8 && !defined(APPL_EMULATE_AVX512)
inline Ints add_byte_pairs(Ints sum, Words a, Words b, Words c, Words d, Words factor) {
  Ints first, second;
  asm("vpmaddubsw %4, %3, %1\n\tvpmaddubsw %6, %5, %2\n\tvpaddw %2, %1, %1\n\tvpmaddwd %7, %1, %1\n\tvpaddd %1, %0, %0"
      : "+v"(sum), "=&v"(first), "=&v"(second)
      : "v"(a), "v"(b), "v"(c), "v"(d), "v"(factor));
  return sum;
}
#endif

// The factors of sums that have none.
struct NoFactors {
  Words operator[](int) const { return no_factor(); }
};

// The products of one weight type: `kColumns` columns of a panel are kLines cache lines and `kSteps` steps. Step s multiplies
// weights(at, s), from the vector at `at`, with the four bytes of input at s * 4; with kPairs, steps come two at a time.
// `add` may be called for kFoldColumns columns before `fold`.
constexpr int kLineBytes = kPanel * 4;

template <int Bits>
Words plane_weights(const uint8_t* at, int s) {
  return Planes<Bits>::get(load<Words>(at), load<Words>(at + (1 + s / 2) * kLineBytes), s);
}

// kIsBook: codes are places in a book; scales may be e8m0, and are multiplied with the book's kUnit.
#if APPL_VNNI
struct Accumulate {
  using Sum = Ints;
  static constexpr bool kPairs = false, kIsBook = false;
  static Sum add(Sum sum, Words w, Words x) { return add_byte_dots(sum, w, x); }
  static Ints fold(Sum sum, Words factor) { return sum * bit_cast<Ints>(factor); }
  template <int Half>
  static Words factor(Words pairs) {
    return int_factor<Half>(pairs);
  }
};
struct Int8Type : Accumulate {
  static constexpr int kColumns = 4, kLines = 1, kSteps = 1;
  static Words weights(const uint8_t* at, int) { return load<Words>(at); }
};
struct Int4Type : Accumulate {
  static constexpr int kColumns = 8, kLines = 1, kSteps = 2;
  static Words weights(const uint8_t* at, int s) { return (s == 0 ? load<Words>(at) : load<Words>(at) >> 4) & 0x0f0f0f0fu; }
};
template <appl_layout Layout>
struct BookType : Int4Type {
  static constexpr bool kIsBook = true;
  static constexpr float kUnit = book_unit(Layout);
  static Words weights(const uint8_t* at, int s) { return look_up_bytes<Layout>(Int4Type::weights(at, s)); }
};
template <int Bits>
struct PlaneType : Accumulate {
  static constexpr int kColumns = Planes<Bits>::kColumns, kLines = 1 + Planes<Bits>::kLines, kSteps = Planes<Bits>::kSteps;
  static Words weights(const uint8_t* at, int s) { return plane_weights<Bits>(at, s); }
};
#else
struct Accumulate {
  using Sum = Ints;
  static constexpr bool kPairs = false, kIsBook = false;
  static constexpr int kFoldColumns = kMaxActivationGroup;
  static Sum add(Sum sum, Words w, Words x) { return add_word_products(sum, w, x); }
  static Ints fold(Sum sum) { return sum; }
  static Ints fold(Sum sum, Words factor) { return sum * bit_cast<Ints>(factor); }
  template <int Half>
  static Words factor(Words pairs) {
    return int_factor<Half>(pairs);
  }
  // Bytes 0 and 2 of each lane, or 1 and 3, as words.
  static Words widen_bytes(Words u, int s) {
    using UnsignedShorts = uint16_t __attribute__((vector_size(kWidth * 4)));
    return s == 0 ? u & 0x00ff00ffu : bit_cast<Words>(bit_cast<UnsignedShorts>(u) >> 8);
  }
};
struct Int8Type : Accumulate {
  static constexpr int kColumns = 4, kLines = 1, kSteps = 2;
  static Words weights(const uint8_t* at, int s) { return widen_bytes(load<Words>(at), s); }
};
template <appl_layout Layout>
struct WordBookType : Accumulate {
  static constexpr bool kIsBook = true;
  static constexpr float kUnit = book_unit(Layout);
  static constexpr int kColumns = 8, kLines = 1, kSteps = 4;
  static Words weights(const uint8_t* at, int s) {
    const Words u = load<Words>(at);
    return widen_bytes(look_up_bytes<Layout>((s < 2 ? u : u >> 4) & 0x0f0f0f0fu), s % 2);
  }
};
#if APPL_WIDTH == 4
template <appl_layout Layout>
using BookType = WordBookType<Layout>;
struct Int4Type : Accumulate {
  static constexpr int kColumns = 8, kLines = 1, kSteps = 4;
  static Words weights(const uint8_t* at, int s) {
    const Words u = load<Words>(at);
    return widen_bytes((s < 2 ? u : u >> 4) & 0x0f0f0f0fu, s % 2);
  }
};
template <int Bits>
struct PlaneType : Accumulate {
  static constexpr int kColumns = Planes<Bits>::kColumns, kLines = 1 + Planes<Bits>::kLines, kSteps = 2 * Planes<Bits>::kSteps;
  static Words weights(const uint8_t* at, int s) { return widen_bytes(plane_weights<Bits>(at, s / 2), s % 2); }
};
#else
template <int Bits>
struct PlaneType {
  using Sum = Ints;
  static constexpr bool kPairs = true, kIsBook = false;
  static constexpr int kColumns = Planes<Bits>::kColumns, kLines = 1 + Planes<Bits>::kLines, kSteps = Planes<Bits>::kSteps;
  static constexpr int kFoldColumns = kMaxActivationGroup;
  static Words weights(const uint8_t* at, int s) { return plane_weights<Bits>(at, s); }
  static Sum add(Sum sum, Words w, Words x, Words next_w, Words next_x, Words factor) {
    return add_byte_pairs(sum, w, x, next_w, next_x, factor);
  }
  static Ints fold(Sum sum) { return sum; }
  template <int Half>
  static Words factor(Words pairs) {
    return word_factor<Half>(pairs);
  }
};
struct Int4Type {
  using Sum = Shorts;
  static constexpr bool kPairs = false, kIsBook = false;
  static constexpr int kColumns = 8, kLines = 1, kSteps = 2, kFoldColumns = 32;
  static Words weights(const uint8_t* at, int s) { return (s == 0 ? load<Words>(at) : load<Words>(at) >> 4) & 0x0f0f0f0fu; }
  static Sum add(Sum sum, Words w, Words x) { return add_byte_products(sum, w, x); }
  static Ints fold(Sum sum) { return fold(sum, no_factor()); }
  static Ints fold(Sum sum, Words factor) { return multiply_pairs(bit_cast<Ints>(sum), bit_cast<Ints>(factor)); }
  template <int Half>
  static Words factor(Words pairs) {
    return word_factor<Half>(pairs);
  }
};
struct E2m1Type : Int4Type {
  static constexpr bool kIsBook = true;
  static constexpr float kUnit = book_unit(APPL_E2M1);
  static constexpr int kFoldColumns = 16;
  static Words weights(const uint8_t* at, int s) { return look_up_bytes<APPL_E2M1>(Int4Type::weights(at, s)); }
};
template <appl_layout Layout>
using BookType = std::conditional_t<Layout == APPL_E2M1, E2m1Type, WordBookType<Layout> >;
#endif
#endif

// The common parts of tiles of Rows rows by Panels panels.
template <class Type, int Rows, int Panels>
struct IntegerSteps {
  static constexpr int kVectors = Panels * kPanelVectors, kUnitBytes = Type::kLines * kLineBytes;
  using Products = Ints[Rows][kVectors];
  using Sums = typename Type::Sum[Rows][kVectors];

  static const uint8_t* vector(const TileArgs& t, const uint8_t* b, int v) {
    return b + size_t(v / kPanelVectors) * t.panel_bytes + (v % kPanelVectors) * kWidth * 4;
  }

  // Multiplies step s of the unit at `b` with the input at `a`. Types with pairs apply factors[v] here, others when they fold.
  template <class Factors>
  [[gnu::always_inline]] static void add_step(const TileArgs& t, const uint8_t* a, const uint8_t* b, int s, Sums& sums,
                                              [[maybe_unused]] const Factors& factors) {
    if constexpr (Type::kPairs) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const uint8_t* at = vector(t, b, v);
        const Words w = Type::weights(at, s), next = Type::weights(at, s + 1);
#pragma GCC unroll 16
        for (int m = 0; m < Rows; ++m) {
          const uint8_t* x = a + size_t(m) * kRowBytes;
          sums[m][v] = Type::add(sums[m][v], w, splat_word(load<uint32_t>(x)), next, splat_word(load<uint32_t>(x + 4)), factors[v]);
        }
      }
    } else {
      Words w[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) w[v] = Type::weights(vector(t, b, v), s);
#pragma GCC unroll 16
      for (int m = 0; m < Rows; ++m) {
        const Words x = splat_word(load<uint32_t>(a + size_t(m) * kRowBytes));
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sums[m][v] = Type::add(sums[m][v], w[v], x);
      }
    }
  }
};

}  // namespace
}  // namespace appl
