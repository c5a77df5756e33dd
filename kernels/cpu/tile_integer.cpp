// Tiles over quantized weights and int8 inputs: integer dot products a group, scaled into f32 sums.
//
// Weights are unsigned bytes (q + 128, or a nibble), inputs signed. The zero point is taken out by the sum of the inputs:
// sum((u - z) x) = sum(u x) - z sum(x). No step can saturate:
//   VNNI      vpdpbusd adds into 32 bits;
//   int4      vpmaddubsw pairs are at most 2 * 15 * 127 = 3810, and eight of them (32 columns) fit 16 bits;
//   int5, int6  two sums of vpmaddubsw pairs are at most 4 * 63 * 127 = 32004, and vpmaddwd adds them into 32 bits;
//   int8      vpmaddwd on weights widened to 16 bits.
// All tiles, tall ones too, round alike: a group is summed in integers, times the input's scale, and then fused with the weight's
// scale and the sum so far. So what a row gets does not depend on how many others there are.
#include <type_traits>

#include "planes.h"
#include "tile.h"

namespace appl {
namespace {

using Shorts = int16_t __attribute__((vector_size(kWidth * 4)));

inline Ints multiply_pairs(Ints a, Ints b) {
#if APPL_WIDTH == 16
  return bit_cast<Ints>(_mm512_madd_epi16(bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
#elif APPL_WIDTH == 8
  return bit_cast<Ints>(_mm256_madd_epi16(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return bit_cast<Ints>(_mm_madd_epi16(bit_cast<__m128i>(a), bit_cast<__m128i>(b)));
#else
  const Shorts x = bit_cast<Shorts>(a), y = bit_cast<Shorts>(b);
  Ints result;
  for (int i = 0; i < kWidth; ++i) result[i] = x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1];
  return result;
#endif
}

// sum + a * b on words, added in pairs to 32 bits; and on unsigned and signed bytes, added in pairs to 16 bits. Spelled
// out like multiply_add: the compiler would compute all products of a tile first, and spill them.
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

// sum + a * b + c * d on unsigned and signed bytes, where the four products of a lane's word fit 16 bits.
#if APPL_WIDTH >= 8 && !defined(APPL_EMULATE_AVX512)
inline Ints add_byte_pairs(Ints sum, Words a, Words b, Words c, Words d) {
  Ints first, second;
  asm("vpmaddubsw %4, %3, %1\n\tvpmaddubsw %6, %5, %2\n\tvpaddw %2, %1, %1\n\tvpmaddwd %7, %1, %1\n\tvpaddd %1, %0, %0"
      : "+v"(sum), "=&v"(first), "=&v"(second)
      : "v"(a), "v"(b), "v"(c), "v"(d), "v"(splat_word(0x00010001u)));
  return sum;
}
#endif

// How one weight type is multiplied: `kColumns` columns of a panel are kLines lines of memory and `kSteps` steps. Step s takes
// weights(at, s), of the vector at `at`, times the four bytes of input at s * 4; where kPairs, steps come two at a time.
// `add` may be called for kFoldColumns columns before `fold`.
constexpr int kLineBytes = kPanel * 4;
#if defined(APPL_EMULATE_AVX512)
constexpr int kUnrolledSteps = 1;  // emulated instructions are loops: their unrolled tiles take minutes to compile
#else
constexpr int kUnrolledSteps = 8;
#endif

template <int Bits>
Words plane_weights(const uint8_t* at, int s) {
  return Planes<Bits>::get(load<Words>(at), load<Words>(at + (1 + s / 2) * kLineBytes), s);
}

#if APPL_VNNI
struct Accumulate {
  using Sum = Ints;
  static constexpr bool kPairs = false;
  static constexpr int kFoldColumns = kMaxActivationGroup;
  static Sum add(Sum sum, Words w, Words x) {
    return bit_cast<Ints>(_mm512_dpbusd_epi32(bit_cast<__m512i>(sum), bit_cast<__m512i>(w), bit_cast<__m512i>(x)));
  }
  static Ints fold(Sum sum) { return sum; }
};
struct Int8Type : Accumulate {
  static constexpr int kColumns = 4, kLines = 1, kSteps = 1;
  static Words weights(const uint8_t* at, int) { return load<Words>(at); }
};
struct Int4Type : Accumulate {
  static constexpr int kColumns = 8, kLines = 1, kSteps = 2;
  static Words weights(const uint8_t* at, int s) { return (s == 0 ? load<Words>(at) : load<Words>(at) >> 4) & 0x0f0f0f0fu; }
};
template <int Bits>
struct PlaneType : Accumulate {
  static constexpr int kColumns = Planes<Bits>::kColumns, kLines = 1 + Planes<Bits>::kLines, kSteps = Planes<Bits>::kSteps;
  static Words weights(const uint8_t* at, int s) { return plane_weights<Bits>(at, s); }
};
#else
struct Accumulate {
  using Sum = Ints;
  static constexpr bool kPairs = false;
  static constexpr int kFoldColumns = kMaxActivationGroup;
  static Sum add(Sum sum, Words w, Words x) { return add_word_products(sum, w, x); }
  static Ints fold(Sum sum) { return sum; }
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
#if APPL_WIDTH == 4
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
  static constexpr bool kPairs = true;
  static constexpr int kColumns = Planes<Bits>::kColumns, kLines = 1 + Planes<Bits>::kLines, kSteps = Planes<Bits>::kSteps;
  static constexpr int kFoldColumns = kMaxActivationGroup;
  static Words weights(const uint8_t* at, int s) { return plane_weights<Bits>(at, s); }
  static Sum add(Sum sum, Words w, Words x, Words next_w, Words next_x) { return add_byte_pairs(sum, w, x, next_w, next_x); }
  static Ints fold(Sum sum) { return sum; }
};
struct Int4Type {
  using Sum = Shorts;
  static constexpr bool kPairs = false;
  static constexpr int kColumns = 8, kLines = 1, kSteps = 2, kFoldColumns = 32;
  static Words weights(const uint8_t* at, int s) { return (s == 0 ? load<Words>(at) : load<Words>(at) >> 4) & 0x0f0f0f0fu; }
  static Sum add(Sum sum, Words w, Words x) { return add_byte_products(sum, w, x); }
  static Ints fold(Sum sum) { return multiply_pairs(bit_cast<Ints>(sum), Ints(splat_word(0x00010001u))); }
};
#endif
#endif

template <class Type, int Rows, int Panels>
class IntegerTile {
 protected:
  static constexpr int kVectors = Panels * kPanelVectors, kUnitBytes = Type::kLines * kLineBytes;
  static_assert(Rows <= kWidth, "the zero points of all rows are one vector");
  using Products = Ints[Rows][kVectors];
  using Sums = typename Type::Sum[Rows][kVectors];
  using Results = Accumulators<Rows, kVectors>;
  using Prefetch = appl::Prefetch<Rows, Panels, Rows == 1>;

 public:
  static void run(const TileArgs& t) {
    // The results stay in memory, where the compiler cannot move them: these loops need the registers for sums.
    Results results;
    Results* c = &results;
    asm("" : "+r"(c));
    c->start(t);
    Prefetch prefetch(t);
    TileArgs group = t;
    for (int first = 0; first < t.columns; first += t.group_size) {
      const int columns = first + t.group_size < t.columns ? t.group_size : t.columns - first;
      prefetch.header(group.header);
      alignas(64) int32_t zero[kWidth];
      store(zero, to_ints(load(group.sum) * -t.zero_point));
      Products products;
      for (int k = 0; k < columns; k += Type::kFoldColumns) {
        const int count = k + Type::kFoldColumns < columns ? Type::kFoldColumns : columns - k;
        multiply(group, count, prefetch, k == 0, products);
        group.a += count / Type::kColumns * Type::kSteps * 4;
        group.b += count / Type::kColumns * kUnitBytes;
      }
      scale(group, products, zero, *c);
      if (t.has_offset) add_offset(group, *c);
      group.b += t.group_stride - size_t(columns) / Type::kColumns * size_t{kUnitBytes};
      group.header += t.header_stride;
      group.scale += t.side_stride;
      group.sum += t.side_stride;
      group.scaled_sum += t.side_stride;
    }
    c->finish(t);
  }

 protected:
  static const uint8_t* vector(const TileArgs& t, const uint8_t* b, int v) {
    return b + size_t(v / kPanelVectors) * t.panel_bytes + (v % kPanelVectors) * kWidth * 4;
  }
  static const uint8_t* header(const TileArgs& t, int v) {
    return t.header + size_t(v / kPanelVectors) * t.panel_bytes;
  }

  // Not inlined: the compiler runs out of registers when it sees what becomes of the sums.
  [[gnu::noinline]] static void multiply(const TileArgs& t, int columns, Prefetch& ahead, bool is_first,
                                         Products& products) {
    Sums sums = {};
    Prefetch prefetch = Rows <= 2 ? Prefetch(t) : ahead;
    const uint8_t *a = t.a, *b = t.b;
    for (int k = 0; k < columns; k += Type::kColumns, a += Type::kSteps * 4, b += kUnitBytes) {
      prefetch.template step<Type::kLines>(b);
#pragma GCC unroll kUnrolledSteps
      for (int s = 0; s < Type::kSteps; s += Type::kPairs ? 2 : 1) add_step(t, a + s * 4, b, s, sums);
    }
    if constexpr (Rows > 2) ahead = prefetch;
    for (int m = 0; m < Rows; ++m) {
      for (int v = 0; v < kVectors; ++v) {
        const Ints sum = Type::fold(sums[m][v]);
        products[m][v] = is_first ? sum : products[m][v] + sum;
      }
    }
  }

  [[gnu::always_inline]] static void add_step(const TileArgs& t, const uint8_t* a, const uint8_t* b, int s, Sums& sums) {
    if constexpr (Type::kPairs) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const uint8_t* at = vector(t, b, v);
        const Words w = Type::weights(at, s), next = Type::weights(at, s + 1);
#pragma GCC unroll 16
        for (int m = 0; m < Rows; ++m) {
          const uint8_t* x = a + size_t(m) * kRowBytes;
          sums[m][v] = Type::add(sums[m][v], w, splat_word(load<uint32_t>(x)), next, splat_word(load<uint32_t>(x + 4)));
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

  // c += (products + zero) * scale of the input * scale of the weights
  static void scale(const TileArgs& t, const Products& products, const int32_t* zero, Results& c) {
    Floats weight_scale[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) weight_scale[v] = load_scales(header(t, v), t.scales_are_f32, v % kPanelVectors);
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m) {
      const Floats input_scale = splat(t.scale[m]);
      const Ints offset = splat_int(zero[m]);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const Floats product = to_floats(products[m][v] + offset) * input_scale;
        c.value[m][v] = multiply_add(c.value[m][v], product, weight_scale[v]);
      }
    }
  }

  // c += offset * sum of the inputs
  static void add_offset(const TileArgs& t, Results& c) {
    const size_t scale_bytes = size_t{kPanel} * (t.scales_are_f32 ? 4 : 2);
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const Floats offset = load_scales(header(t, v) + scale_bytes, t.scales_are_f32, v % kPanelVectors);
#pragma GCC unroll 16
      for (int m = 0; m < Rows; ++m) c.value[m][v] = multiply_add(c.value[m][v], splat(t.scaled_sum[m]), offset);
    }
  }
};

// Tiles of so few sums that results, sums and what they are made of fit the registers together. Nothing passes through memory,
// and the scaling of one group overlaps with the products of the next. One row runs at the pace of memory only this way.
template <class Type, int Rows, int Panels>
class StreamTile : IntegerTile<Type, Rows, Panels> {
  using Tile = IntegerTile<Type, Rows, Panels>;
  using Tile::kUnitBytes, Tile::kVectors;
  using typename Tile::Prefetch;

 public:
  static void run(const TileArgs& t) {
    Accumulators<Rows, kVectors> c;
    c.start(t);
    Prefetch prefetch(t);
    const uint8_t *a = t.a, *group = t.b, *header = t.header;
    size_t side = 0;
    for (int first = 0; first < t.columns; first += t.group_size) {
      const int columns = first + t.group_size < t.columns ? t.group_size : t.columns - first;
      prefetch.header(header);
      Ints products[Rows][kVectors];
#pragma GCC unroll 4
      for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) products[m][v] = splat_int(int32_t(t.sum[side + size_t(m)] * -t.zero_point));
      const uint8_t* b = group;
      for (int k = 0; k < columns; k += Type::kFoldColumns) {
        const int count = k + Type::kFoldColumns < columns ? Type::kFoldColumns : columns - k;
        multiply(t, count, prefetch, a, b, products);
      }
      scale(t, header, side, products, c.value);
      group += t.group_stride;
      header += t.header_stride;
      side += t.side_stride;
    }
    c.finish(t);
  }

 private:
  [[gnu::always_inline]] static void multiply(const TileArgs& t, int columns, Prefetch& prefetch, const uint8_t*& a,
                                              const uint8_t*& b, Ints (&products)[Rows][kVectors]) {
    typename Tile::Sums sums = {};
    for (int k = 0; k < columns; k += Type::kColumns, a += Type::kSteps * 4, b += kUnitBytes) {
      prefetch.template step<Type::kLines>(b);
#pragma GCC unroll kUnrolledSteps
      for (int s = 0; s < Type::kSteps; s += Type::kPairs ? 2 : 1) Tile::add_step(t, a + s * 4, b, s, sums);
    }
#pragma GCC unroll 4
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) products[m][v] += Type::fold(sums[m][v]);
  }

  [[gnu::always_inline]] static void scale(const TileArgs& t, const uint8_t* header, size_t side,
                                           const Ints (&products)[Rows][kVectors], Floats (&c)[Rows][kVectors]) {
    const size_t scale_bytes = size_t{kPanel} * (t.scales_are_f32 ? 4 : 2);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const uint8_t* at = header + size_t(v / kPanelVectors) * t.panel_bytes;
      const Floats weight_scale = load_scales(at, t.scales_are_f32, v % kPanelVectors);
#pragma GCC unroll 4
      for (int m = 0; m < Rows; ++m) {
        const Floats product = to_floats(products[m][v]) * splat(t.scale[side + size_t(m)]);
        c[m][v] = multiply_add(c[m][v], product, weight_scale);
      }
      if (!t.has_offset) continue;
      const Floats offset = load_scales(at + scale_bytes, t.scales_are_f32, v % kPanelVectors);
#pragma GCC unroll 4
      for (int m = 0; m < Rows; ++m) c[m][v] = multiply_add(c[m][v], splat(t.scaled_sum[side + size_t(m)]), offset);
    }
  }
};

template <class Type, int Rows, int Panels>
using AnyTile =
    std::conditional_t<tile_streams(Rows, Panels), StreamTile<Type, Rows, Panels>, IntegerTile<Type, Rows, Panels>>;

template <int Rows, int Panels>
using Int8Tile = AnyTile<Int8Type, Rows, Panels>;
template <int Rows, int Panels>
using Int4Tile = AnyTile<Int4Type, Rows, Panels>;
template <int Rows, int Panels>
using Int5Tile = AnyTile<PlaneType<5>, Rows, Panels>;
template <int Rows, int Panels>
using Int6Tile = AnyTile<PlaneType<6>, Rows, Panels>;

}  // namespace

const TileTable kInt8Tiles = make_tiles<Int8Tile>();
const TileTable kInt4Tiles = make_tiles<Int4Tile>();
const TileTable kInt5Tiles = make_tiles<Int5Tile>();
const TileTable kInt6Tiles = make_tiles<Int6Tile>();

}  // namespace appl
