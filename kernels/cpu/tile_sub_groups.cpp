// Integer tiles over weights whose groups of 256 columns have sub-groups with small integer factors (GGUF's k-quants).
//
// The factor of a sub-group is multiplied into its integer sum, which is free on AVX2: the instruction that adds 16-bit sums in pairs
// also multiplies them. So there is only one conversion to f32 and one scale for 256 columns. For a row and a group:
//   sum = sum over sub-groups of factor * sum(u x)              at most 63 * 127 * 256 * 128 = 2.6e8
//   rest = sum over sub-groups of offset factor * sum(x)        at most 127 * 256 * 128 = 4.2e6
//   c += rest * input scale * offset                            or without offsets, sum -= zero point * rest
//   c += sum * input scale * scale
// Integers are exact in any order, and all tiles, tall ones too, round the last two lines in the same way.
#include "integer_products.h"

namespace appl {
namespace {

// The tile for sub-groups of `Size` columns.
template <class Type, int Size, int Rows, int Panels>
class SubGroupTile : IntegerSteps<Type, Rows, Panels> {
  using Steps = IntegerSteps<Type, Rows, Panels>;
  using Steps::kVectors, Steps::kUnitBytes, Steps::add_step;
  using typename Steps::Products, typename Steps::Sums;
  using Prefetch = appl::Prefetch<Panels, ahead_of_integers(Rows, Panels, Type::kSteps, true)>;
  using Factors = Words[kVectors];
  static constexpr int kSubGroups = kMaxActivationGroup / Size, kUnits = Size / Type::kColumns;
  static constexpr int kUnrolledUnits = APPL_VNNI ? kUnrolledSteps : 1;  // else the compiler would prefetch for all units at once

  // The tile's place: the input and the weights of a sub-group, the header of its group, and the sums of the group's inputs.
  struct Place {
    const uint8_t *a, *b, *header;
    const int16_t* sub_sum;
  };

 public:
  // Not inlined, so that each size is a separate function, whose machine code can be inspected.
  [[gnu::noinline]] static void run(const TileArgs& t) {
    Accumulators<Rows, kVectors> c;
    c.start(t);
    Prefetch prefetch(t);
    Place at{t.a, t.b, t.header, t.sub_sum};
    const uint8_t* data = t.b;
    const float* scale = t.scale;
    for (int first = 0; first < t.columns; first += t.group_size) {
      prefetch.header(at.header, t.header_bytes);
      at.b = data;
      Products sums = {}, rests = {};
      for (int pair = 0; pair < kSubGroups / 2; ++pair) {
        Factors pairs;
        load_pairs(t, at.header + t.sub_scale_at, pair, pairs);
        add_sub_group<0>(t, pairs, at, prefetch, sums);
        add_sub_group<1>(t, pairs, at, prefetch, sums);
      }
      add_rests(t, at, rests);
      add_scaled(t, at.header, scale, sums, rests, c.value);
      data += t.group_stride;
      scale += t.side_stride;
      at.header += t.header_stride;
      at.sub_sum += t.side_stride * kSubGroups;
    }
    c.finish(t);
  }

 private:
  static const uint8_t* of_panel(const TileArgs& t, const uint8_t* header, int v) {
    return header + size_t(v / kPanelVectors) * t.panel_bytes;
  }

  [[gnu::always_inline]] static void load_pairs(const TileArgs& t, const uint8_t* from, int pair, Factors& pairs) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) pairs[v] = load_factor_pairs(of_panel(t, from, v) + pair * kPanel * 2, v % kPanelVectors);
  }

  // Multiplies a sub-group, and moves the input and the weights to its end.
  template <int Half>
  [[gnu::always_inline]] static void add_sub_group(const TileArgs& t, const Factors& pairs, Place& at, Prefetch& prefetch, Products& sums) {
    Factors factors;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) factors[v] = Type::template factor<Half>(pairs[v]);
    if constexpr (sub_groups_fit(Rows, Panels)) multiply(t, factors, at, prefetch, sums);
    else multiply_apart(t, factors, at, prefetch, sums);
    at.a += kUnits * Type::kSteps * 4;
    at.b += kUnits * kUnitBytes;
  }

  // The same if sums and products do not fit in the registers together, which is so without VNNI.
  [[gnu::noinline]] static void multiply_apart(const TileArgs& t, const Factors& factors, const Place& at, Prefetch& prefetch,
                                               Products& sums) {
    multiply(t, factors, at, prefetch, sums);
  }

  [[gnu::always_inline]] static void multiply(const TileArgs& t, const Factors& factors, const Place& at, Prefetch& prefetch,
                                              Products& products) {
    Sums sums = {};
    Prefetch ahead = prefetch;
#pragma GCC unroll kUnrolledUnits
    for (int i = 0; i < kUnits; ++i) {
      const uint8_t *a = at.a + i * Type::kSteps * 4, *b = at.b + i * kUnitBytes;
      ahead.template step<Type::kLines>(b);
#pragma GCC unroll kUnrolledSteps
      for (int s = 0; s < Type::kSteps; s += Type::kPairs ? 2 : 1) add_step(t, a + s * 4, b, s, sums, factors);
    }
    prefetch.go_on_from(ahead);
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (Type::kPairs) products[m][v] += sums[m][v];
        else products[m][v] += Type::fold(sums[m][v], factors[v]);
      }
  }

  // Adds a group's rests after its products: for many rows the registers have no room for both, and for few rows it costs nothing.
  [[gnu::always_inline]] static void add_rests(const TileArgs& t, const Place& at, Products& rests) {
    const uint8_t* const from = at.header + (t.has_offset ? t.sub_offset_at : t.sub_scale_at);
    for (int pair = 0; pair < kSubGroups / 2; ++pair) {
      Factors pairs;
      load_pairs(t, from, pair, pairs);
#pragma GCC unroll 16
      for (int m = 0; m < Rows; ++m) {
        const Ints x = Ints(splat_word(load<uint32_t>(at.sub_sum + m * kSubGroups + pair * 2)));
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) rests[m][v] = add_pairs(rests[m][v], Ints(pairs[v]), x);
      }
    }
  }

  static void add_scaled(const TileArgs& t, const uint8_t* header, const float* scale, const Products& sums, const Products& rests,
                         Floats (&c)[Rows][kVectors]) {
    const int zero = int(t.zero_point);
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const uint8_t* const at = of_panel(t, header, v);
      const Floats weight_scale = load_integer_scales(at, t.scale_type, v % kPanelVectors);
      const Floats offset = t.has_offset ? load_integer_offsets(at, t.scale_type, v % kPanelVectors) : Floats{};
#pragma GCC unroll 16
      for (int m = 0; m < Rows; ++m) {
        const Floats x = splat(scale[m]);
        if (t.has_offset) c[m][v] = multiply_add(c[m][v], to_floats(rests[m][v]) * x, offset);
        const Ints sum = t.has_offset ? sums[m][v] : sums[m][v] - rests[m][v] * zero;
        c[m][v] = multiply_add(c[m][v], to_floats(sum) * x, weight_scale);
      }
    }
  }
};

// The tile for sub-groups of 32 columns or, if units of columns allow it, of 16.
template <class Type, int Rows, int Panels>
struct TileOfAnySize {
  static void run(const TileArgs& t) {
    if constexpr (Type::kColumns <= 16) {
      if (t.sub_group_size == 16) return SubGroupTile<Type, 16, Rows, Panels>::run(t);
    }
    SubGroupTile<Type, 32, Rows, Panels>::run(t);
  }
};

template <int Rows, int Panels>
using Int4Tile = TileOfAnySize<Int4Type, Rows, Panels>;
template <int Rows, int Panels>
using Int5Tile = TileOfAnySize<PlaneType<5>, Rows, Panels>;
template <int Rows, int Panels>
using Int6Tile = TileOfAnySize<PlaneType<6>, Rows, Panels>;

// With VNNI no other tiles run.
constexpr bool is_run(int rows, int panels) { return tile_fits(rows, panels) && (!APPL_VNNI || sub_groups_fit(rows, panels)); }

}  // namespace

const TileTable kInt4SubGroupTiles = make_tiles<Int4Tile, is_run>();
const TileTable kInt5SubGroupTiles = make_tiles<Int5Tile, is_run>();
const TileTable kInt6SubGroupTiles = make_tiles<Int6Tile, is_run>();

}  // namespace appl
