// Integer tiles over weights whose groups of 256 columns have sub-groups with small integer factors (GGUF's k-quants).
//
// The factor of a sub-group is multiplied into its integer sum, which on AVX2 costs nothing: the instruction that adds 16-bit sums
// in pairs multiplies them as well. So only 256 columns come to a conversion into f32 and a scale. Of a row and a group:
//   sum = sum over sub-groups of factor * sum(u x)              at most 63 * 127 * 256 * 128 = 2.6e8
//   rest = sum over sub-groups of offset factor * sum(x)        at most 127 * 256 * 128 = 4.2e6
//   c += rest * input scale * offset                            or without offsets, sum -= zero point * rest
//   c += sum * input scale * scale
// Integers are exact in any order, and all tiles, tall ones too, round these alike.
#include "integer_products.h"

namespace appl {
namespace {

template <class Type, int Rows, int Panels>
class SubGroupTile : IntegerSteps<Type, Rows, Panels> {
  using Steps = IntegerSteps<Type, Rows, Panels>;
  using Steps::kVectors, Steps::kUnitBytes, Steps::add_step;
  using typename Steps::Products, typename Steps::Sums;
  using Prefetch = appl::Prefetch<Panels, ahead_of_integers(Rows, Type::kSteps)>;
  using Factors = Words[kVectors];

 public:
  static void run(const TileArgs& t) {
    Accumulators<Rows, kVectors> c;
    c.start(t);
    Prefetch prefetch(t);
    const int num_pairs = t.num_sub_groups() / 2;
    TileArgs group = t;
    for (int first = 0; first < t.columns; first += t.group_size) {
      prefetch.header(group.header, t.header_bytes);
      Products sums = {}, rests = {};
      for (int pair = 0; pair < num_pairs; ++pair) {
        Factors pairs;
        load_pairs(group, t.sub_scale_at, pair, pairs);
        add_sub_group<0>(group, pairs, prefetch, sums);
        add_sub_group<1>(group, pairs, prefetch, sums);
        if (t.has_offset) load_pairs(group, t.sub_offset_at, pair, pairs);
        add_rests(group, pairs, pair, rests);
      }
      scale(group, sums, rests, c.value);
      group.b += t.group_stride - size_t(t.group_size) / Type::kColumns * size_t{kUnitBytes};
      group.header += t.header_stride;
      group.scale += t.side_stride;
      group.sub_sum += t.side_stride * size_t(t.num_sub_groups());
    }
    c.finish(t);
  }

 private:
  static const uint8_t* header(const TileArgs& t, int v) { return t.header + size_t(v / kPanelVectors) * t.panel_bytes; }

  [[gnu::always_inline]] static void load_pairs(const TileArgs& t, size_t at, int pair, Factors& pairs) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) pairs[v] = load_factor_pairs(header(t, v) + at + pair * kPanel * 2, v % kPanelVectors);
  }

  // Leaves the input and the weights behind the sub-group.
  template <int Half>
  [[gnu::always_inline]] static void add_sub_group(TileArgs& t, const Factors& pairs, Prefetch& prefetch, Products& sums) {
    Factors factors;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) factors[v] = Type::template factor<Half>(pairs[v]);
    if constexpr (tile_streams(Rows, Panels)) multiply(t, factors, prefetch, sums);
    else multiply_apart(t, factors, prefetch, sums);
    t.a += t.sub_group_size / Type::kColumns * Type::kSteps * 4;
    t.b += t.sub_group_size / Type::kColumns * kUnitBytes;
  }

  // Where sums and products do not fit the registers together.
  [[gnu::noinline]] static void multiply_apart(const TileArgs& t, const Factors& factors, Prefetch& prefetch, Products& sums) {
    multiply(t, factors, prefetch, sums);
  }

  [[gnu::always_inline]] static void multiply(const TileArgs& t, const Factors& factors, Prefetch& prefetch, Products& products) {
    Sums sums = {};
    Prefetch ahead = prefetch;
    const uint8_t *a = t.a, *b = t.b;
    for (int k = 0; k < t.sub_group_size; k += Type::kColumns, a += Type::kSteps * 4, b += kUnitBytes) {
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

  [[gnu::always_inline]] static void add_rests(const TileArgs& t, const Factors& pairs, int pair, Products& rests) {
    const size_t count = size_t(t.num_sub_groups());
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m) {
      const Ints x = Ints(splat_word(load<uint32_t>(t.sub_sum + size_t(m) * count + size_t(pair) * 2)));
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) rests[m][v] += multiply_pairs(Ints(pairs[v]), x);
    }
  }

  static void scale(const TileArgs& t, const Products& sums, const Products& rests, Floats (&c)[Rows][kVectors]) {
    const int zero = int(t.zero_point);
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const Floats weight_scale = load_scales(header(t, v), t.scales_are_f32, v % kPanelVectors);
      const Floats offset = t.has_offset ? load_offsets(header(t, v), t.scales_are_f32, v % kPanelVectors) : Floats{};
#pragma GCC unroll 16
      for (int m = 0; m < Rows; ++m) {
        const Floats x = splat(t.scale[m]);
        if (t.has_offset) c[m][v] = multiply_add(c[m][v], to_floats(rests[m][v]) * x, offset);
        const Ints sum = t.has_offset ? sums[m][v] : sums[m][v] - rests[m][v] * zero;
        c[m][v] = multiply_add(c[m][v], to_floats(sum) * x, weight_scale);
      }
    }
  }
};

template <int Rows, int Panels>
using Int4Tile = SubGroupTile<Int4Type, Rows, Panels>;
template <int Rows, int Panels>
using Int5Tile = SubGroupTile<PlaneType<5>, Rows, Panels>;
template <int Rows, int Panels>
using Int6Tile = SubGroupTile<PlaneType<6>, Rows, Panels>;

}  // namespace

const TileTable kInt4SubGroupTiles = make_tiles<Int4Tile>();
const TileTable kInt5SubGroupTiles = make_tiles<Int5Tile>();
const TileTable kInt6SubGroupTiles = make_tiles<Int6Tile>();

}  // namespace appl
