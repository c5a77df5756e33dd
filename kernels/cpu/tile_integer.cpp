// Tiles over quantized weights and int8 inputs: integer dot products for each group, scaled into f32 sums.
//
// Weights are unsigned bytes (q + 128, or a nibble), inputs are signed. The sum of the inputs removes the zero point:
// sum((u - z) x) = sum(u x) - z sum(x). No step can saturate:
//   VNNI      vpdpbusd adds into 32 bits;
//   int4      vpmaddubsw pairs are at most 2 * 15 * 127 = 3810, and eight of them (32 columns) fit 16 bits;
//   int5, int6  two sums of vpmaddubsw pairs are at most 4 * 63 * 127 = 32004, and vpmaddwd adds them into 32 bits;
//   e2m1      the same with integers from 0 to 24, of which five pairs (16 columns take four) fit 16 bits;
//   int8, iq4_nl      vpmaddwd on weights widened to 16 bits.
// All tiles, tall ones too, round in the same way: a group is summed in integers, multiplied with the input's scale, and then added by a
// fused multiply-add with the weight's scale. So a row's result does not depend on the number of other rows.
#include <algorithm>
#include <type_traits>

#include "integer_products.h"

namespace appl {
namespace {

// Calls body(data, header, side, columns) for each group of the block; `side` is the offset of the inputs' scales and sums.
template <class Body>
[[gnu::always_inline]] inline void for_groups(const TileArgs& t, Body&& body) {
  const uint8_t *data = t.b, *header = t.header;
  size_t side = 0;
  for (int first = 0; first < t.columns; first += t.group_size) {
    body(data, header, side, first + t.group_size < t.columns ? t.group_size : t.columns - first);
    data += t.group_stride;
    header += t.header_stride;
    side += t.side_stride;
  }
}

#if APPL_VNNI

// The general tile: sums have 32 bits; the results stay in memory.
template <class Type, int Rows, int Panels>
class AnyTile : IntegerSteps<Type, Rows, Panels> {
  using Steps = IntegerSteps<Type, Rows, Panels>;
  using Steps::kVectors, Steps::kUnitBytes, Steps::add_step;
  using typename Steps::Sums;
  using Results = Accumulators<Rows, kVectors>;
  using Prefetch = appl::Prefetch<Panels, ahead_of_integers(Rows, Panels, Type::kSteps, false)>;
  static_assert(Rows <= kWidth, "the zero points of all rows are one vector");
  static constexpr bool kIsPacedByMemory = Rows <= 2;
  static constexpr int kUnrolled = kIsPacedByMemory ? Type::kColumns : std::max(32, Type::kColumns);  // columns

  // The sums of the rows' inputs times minus the zero point, a vector of rows for each group. They are computed before the products and
  // added after them, so that neither waits; for one or two rows group by group, as these are memory-bound and would gain nothing.
  class Zeros {
   public:
    explicit Zeros(const TileArgs& t) : t_(t) {
      if constexpr (kIsPacedByMemory) return;
      for (int first = 0, group = 0; first < t.columns; first += t.group_size, ++group) compute(group, size_t(group) * t.side_stride);
    }
    const int32_t* at(size_t side) {
      if constexpr (kIsPacedByMemory) compute(0, side);
      else ++group_;
      return value_[group_];
    }

   private:
    void compute(int group, size_t side) { store(value_[group], to_ints(load(t_.sum + side) * -t_.zero_point)); }
    const TileArgs& t_;
    int group_ = kIsPacedByMemory ? 0 : -1;
    alignas(64) int32_t value_[kIsPacedByMemory ? 1 : block_columns(Form::kInt8) / kMinActivationGroup][kWidth];
  };

 public:
  static void run(const TileArgs& t) {
    Results c;
    c.start(t);
    Prefetch prefetch(t);
    Zeros zeros(t);
    const uint8_t* a = t.a;
    for_groups(t, [&](const uint8_t* b, const uint8_t* header, size_t side, int columns) {
      prefetch.header(header);
      const int32_t* const zero = zeros.at(side);
      Sums sums = {};
      const auto unit = [&] [[gnu::always_inline]] {
        prefetch.template step<Type::kLines>(b);
#pragma GCC unroll kUnrolledSteps
        for (int s = 0; s < Type::kSteps; ++s) add_step(t, a + s * 4, b, s, sums, NoFactors{});
        a += Type::kSteps * 4;
        b += kUnitBytes;
      };
      int k = 0;
      for (; k + kUnrolled <= columns; k += kUnrolled) {
#pragma GCC unroll kUnrolledSteps
        for (int i = 0; i < kUnrolled / Type::kColumns; ++i) unit();
      }
      for (; k < columns; k += Type::kColumns) unit();
      scale(t, header, side, zero, sums, c);
    });
    c.finish(t);
  }

 private:
  [[gnu::always_inline]] static void scale(const TileArgs& t, const uint8_t* header, size_t side, const int32_t* zero, const Sums& sums,
                                           Results& c) {
    const auto at = [&](int v) { return header + size_t(v / kPanelVectors) * t.panel_bytes; };
    Floats weight_scale[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) weight_scale[v] = load_scales_of<Type>(at(v), t.scale_type, v % kPanelVectors);
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m) {
      const Floats x = splat(t.scale[side + size_t(m)]);
      const Ints z = load_splat(zero + m);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) add_scaled(c.value[m][v], sums[m][v] + z, x, weight_scale[v]);
    }
    if (!t.has_offset) return;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const Floats offset = load_integer_offsets(at(v), t.scale_type, v % kPanelVectors);
#pragma GCC unroll 16
      for (int m = 0; m < Rows; ++m) {
        c.value[m][v] = multiply_add(c.value[m][v], splat(t.scaled_sum[side + size_t(m)]), offset);
      }
    }
  }
};

#else

template <class Type, int Rows, int Panels>
class IntegerTile : IntegerSteps<Type, Rows, Panels> {
 protected:
  using Steps = IntegerSteps<Type, Rows, Panels>;
  using Steps::kVectors, Steps::kUnitBytes, Steps::add_step;
  using typename Steps::Products, typename Steps::Sums;
  static_assert(Rows <= kWidth, "the zero points of all rows are one vector");
  using Results = Accumulators<Rows, kVectors>;
  using Prefetch = appl::Prefetch<Panels, ahead_of_integers(Rows, Panels, Type::kSteps, false)>;

 public:
  static void run(const TileArgs& t) {
    // The results stay in memory, because these loops need the registers for sums.
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
  static const uint8_t* header(const TileArgs& t, int v) { return t.header + size_t(v / kPanelVectors) * t.panel_bytes; }

  // Not inlined: the compiler runs out of registers when it sees the use of the sums.
  [[gnu::noinline]] static void multiply(const TileArgs& t, int columns, Prefetch& ahead, bool is_first, Products& products) {
    Sums sums = {};
    Prefetch prefetch = Prefetch::kGoesOn ? ahead : Prefetch(t);
    const uint8_t *a = t.a, *b = t.b;
    for (int k = 0; k < columns; k += Type::kColumns, a += Type::kSteps * 4, b += kUnitBytes) {
      prefetch.template step<Type::kLines>(b);
#pragma GCC unroll kUnrolledSteps
      for (int s = 0; s < Type::kSteps; s += Type::kPairs ? 2 : 1) add_step(t, a + s * 4, b, s, sums, NoFactors{});
    }
    if constexpr (Prefetch::kGoesOn) ahead.go_on_from(prefetch);
    for (int m = 0; m < Rows; ++m) {
      for (int v = 0; v < kVectors; ++v) {
        const Ints sum = Type::fold(sums[m][v]);
        products[m][v] = is_first ? sum : products[m][v] + sum;
      }
    }
  }

  // c += (products + zero) * scale of the input * scale of the weights
  static void scale(const TileArgs& t, const Products& products, const int32_t* zero, Results& c) {
    Floats weight_scale[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) weight_scale[v] = load_scales_of<Type>(header(t, v), t.scale_type, v % kPanelVectors);
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
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const Floats offset = load_integer_offsets(header(t, v), t.scale_type, v % kPanelVectors);
#pragma GCC unroll 16
      for (int m = 0; m < Rows; ++m) c.value[m][v] = multiply_add(c.value[m][v], splat(t.scaled_sum[m]), offset);
    }
  }
};

// Tiles with so few sums that results, sums and operands fit in the registers together. Nothing goes through memory, and the scaling of
// one group overlaps with the products of the next. Only in this way does one row run at the speed of memory.
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
    const uint8_t* a = t.a;
    for_groups(t, [&](const uint8_t* b, const uint8_t* header, size_t side, int columns) {
      prefetch.header(header);
      Ints products[Rows][kVectors];
#pragma GCC unroll 4
      for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) products[m][v] = splat_int(int32_t(t.sum[side + size_t(m)] * -t.zero_point));
      for (int k = 0; k < columns; k += Type::kFoldColumns) {
        const int count = k + Type::kFoldColumns < columns ? Type::kFoldColumns : columns - k;
        multiply(t, count, prefetch, a, b, products);
      }
      scale(t, header, side, products, c.value);
    });
    c.finish(t);
  }

 private:
  [[gnu::always_inline]] static void multiply(const TileArgs& t, int columns, Prefetch& prefetch, const uint8_t*& a, const uint8_t*& b,
                                              Ints (&products)[Rows][kVectors]) {
    typename Tile::Sums sums = {};
    for (int k = 0; k < columns; k += Type::kColumns, a += Type::kSteps * 4, b += kUnitBytes) {
      prefetch.template step<Type::kLines>(b);
#pragma GCC unroll kUnrolledSteps
      for (int s = 0; s < Type::kSteps; s += Type::kPairs ? 2 : 1) Tile::add_step(t, a + s * 4, b, s, sums, NoFactors{});
    }
#pragma GCC unroll 4
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) products[m][v] += Type::fold(sums[m][v]);
  }

  [[gnu::always_inline]] static void scale(const TileArgs& t, const uint8_t* header, size_t side, const Ints (&products)[Rows][kVectors],
                                           Floats (&c)[Rows][kVectors]) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const uint8_t* at = header + size_t(v / kPanelVectors) * t.panel_bytes;
      const Floats weight_scale = load_scales_of<Type>(at, t.scale_type, v % kPanelVectors);
#pragma GCC unroll 4
      for (int m = 0; m < Rows; ++m) {
        const Floats product = to_floats(products[m][v]) * splat(t.scale[side + size_t(m)]);
        c[m][v] = multiply_add(c[m][v], product, weight_scale);
      }
      if (!t.has_offset) continue;
      const Floats offset = load_integer_offsets(at, t.scale_type, v % kPanelVectors);
#pragma GCC unroll 4
      for (int m = 0; m < Rows; ++m) c[m][v] = multiply_add(c[m][v], splat(t.scaled_sum[side + size_t(m)]), offset);
    }
  }
};

template <class Type, int Rows, int Panels>
using AnyTile = std::conditional_t<tile_streams(Rows, Panels), StreamTile<Type, Rows, Panels>, IntegerTile<Type, Rows, Panels> >;

#endif

template <int Rows, int Panels>
using Int8Tile = AnyTile<Int8Type, Rows, Panels>;
template <int Rows, int Panels>
using Int4Tile = AnyTile<Int4Type, Rows, Panels>;
template <int Rows, int Panels>
using Int5Tile = AnyTile<PlaneType<5>, Rows, Panels>;
template <int Rows, int Panels>
using Int6Tile = AnyTile<PlaneType<6>, Rows, Panels>;
template <int Rows, int Panels>
using E2m1Tile = AnyTile<BookType<APPL_E2M1>, Rows, Panels>;
template <int Rows, int Panels>
using Iq4Tile = AnyTile<BookType<APPL_IQ4_NL>, Rows, Panels>;

}  // namespace

const TileTable kInt8Tiles = make_tiles<Int8Tile>();
const TileTable kInt4Tiles = make_tiles<Int4Tile>();
const TileTable kInt5Tiles = make_tiles<Int5Tile>();
const TileTable kInt6Tiles = make_tiles<Int6Tile>();
const TileTable kE2m1Tiles = make_tiles<E2m1Tile>();
const TileTable kIq4Tiles = make_tiles<Iq4Tile>();

}  // namespace appl
