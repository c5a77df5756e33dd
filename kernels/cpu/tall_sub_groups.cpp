// Tall tiles over weights whose groups have sub-groups: what tile_sub_groups.cpp computes, from an unpacked block.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "tall_products.h"

namespace appl {

#if APPL_WIDTH == 8 || APPL_VNNI

namespace {

template <class P, int Rows>
class SubGroupTallTile {
  using Products = typename P::Sum[Rows][kVectors];
  using Sums = Ints[Rows][kVectors];
  using Results = Accumulators<Rows, kVectors>;
  static constexpr int kChunk = P::kSteps * P::kColumns;

 public:
  static void run(const TileArgs& t, const TallBlock& block, TallAhead next) {
    Results c;
    c.start(t);
    EvenPrefetch ahead(next, t.columns / kChunk);
    const uint8_t *a = t.a, *b = block.weights;
    const int count = t.num_sub_groups(), num_groups = t.columns / t.group_size;
    for (int group = 0; group < num_groups; ++group) {
      Sums sums;
      start(t, block, group, sums, c);
      for (int i = 0; i < count; ++i) {
        for (int k = 0; k < t.sub_group_size; k += kChunk) {
          Products products = {};
          ahead.step();
          multiply_chunk<P, Rows, !P::kStarts>(a, b, products);
          keep(products, block.factor[group * count + i], sums);
        }
      }
      finish(t, block, group, sums, c);
    }
    c.finish(t);
  }

 private:
  // What the sums of the inputs come to: times the offset's factors into the results, or times the zero point into the sums.
  [[gnu::always_inline]] static void start(const TileArgs& t, const TallBlock& block, int group, Sums& sums, Results& c) {
    const size_t count = size_t(t.num_sub_groups());
    const int16_t* x = t.sub_sum + size_t(group) * t.side_stride * count;
    Sums rests = {};
    for (size_t pair = 0; pair < count / 2; ++pair) {
      const uint8_t* factors = reinterpret_cast<const uint8_t*>(block.rest[size_t(group) * count / 2 + pair]);
      const Ints f[kVectors] = {load<Ints>(factors), load<Ints>(factors + kWidth * 4)};
#pragma GCC unroll 16
      for (int m = 0; m < Rows; ++m) {
        const Ints pair_sums = Ints(splat_word(load<uint32_t>(x + size_t(m) * count + pair * 2)));
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) rests[m][v] = add_pairs(rests[m][v], f[v], pair_sums);
      }
    }
    const float* scale = t.scale + size_t(group) * t.side_stride;
    const int zero = int(t.zero_point);
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sums[m][v] = t.has_offset ? Ints{} : rests[m][v] * -zero;
        if (!t.has_offset) continue;
        const Floats offset = load(block.offset[group] + v * kWidth);
        c.value[m][v] = multiply_add(c.value[m][v], to_floats(rests[m][v]) * splat(scale[m]), offset);
      }
    }
    asm("" : "+m"(c));  // stays in memory: the registers are needed for products
    keep_apart(sums);
  }

  [[gnu::always_inline]] static void keep(const Products& products, const uint32_t (&factor)[kTallLanes], Sums& sums) {
    const Words f[kVectors] = {load<Words>(factor), load<Words>(factor + kWidth)};
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[m][v] = P::accumulate(sums[m][v], products[m][v], f[v]);
    keep_apart(sums);
  }

  // With AVX2, sums stay in memory, too.
  static void keep_apart([[maybe_unused]] Sums& sums) {
    if constexpr (!APPL_VNNI) asm("" : "+m"(sums));
  }

  [[gnu::always_inline]] static void finish(const TileArgs& t, const TallBlock& block, int group, const Sums& sums, Results& c) {
    const float* scale = t.scale + size_t(group) * t.side_stride;
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const Floats product = to_floats(sums[m][v]) * splat(scale[m]);
        c.value[m][v] = multiply_add(c.value[m][v], product, load(block.scale[group] + v * kWidth));
      }
  }
};

}  // namespace

namespace {

// Whether the products of a sub-group's codes with these rows fit 16 bits. They might not where most inputs are near the largest of
// their group.
bool fits_words(appl_layout layout, int rows, const TileArgs& t) {
  const int largest_code = layout == APPL_INT4 ? 15 : layout == APPL_INT5 ? 31 : 63;
  float most = 0;
  const float* of_group = t.sum;
  for (int first = 0; first < t.columns; first += t.group_size, of_group += t.side_stride) {
    most = std::max(most, *std::max_element(of_group, of_group + rows));
  }
  return most <= float(INT16_MAX / largest_code);
}

// Calls body(P{}, F{}) with the products of a layout, and with those where inputs leave 16 bits to their sums.
template <class Body>
void with_products(appl_layout layout, int sub_group_size, Body&& body) {
  switch (layout) {
    case APPL_INT4:
      if (sub_group_size == 16) return body(ProductsOf16{}, ProductsOf16{});
      return body(Products4{}, FittingProducts4{});
    case APPL_INT5: return body(Products5{}, FittingProducts5{});
    default: return body(Products6{}, FittingProducts6{});
  }
}

template <class P>
void unpack_factors(const TileArgs& t, TallBlock& block) {
  const int num_pairs = t.num_sub_groups() / 2;
  const uint8_t* header = t.header;
  for (int first = 0, pair = 0; first < t.columns; first += t.group_size, header += t.header_stride) {
    const uint8_t *factors = header + t.sub_scale_at, *rests = header + (t.has_offset ? t.sub_offset_at : t.sub_scale_at);
    for (int i = 0; i < num_pairs; ++i, ++pair, factors += kPanel * 2, rests += kPanel * 2) {
      for (int v = 0; v < kVectors; ++v) {
        const size_t panel = v / kPanelVectors * t.panel_bytes;
        const Words pairs = load_factor_pairs(factors + panel, v % kPanelVectors);
        store(block.factor[2 * pair] + v * kWidth, P::template factor<0>(pairs));
        store(block.factor[2 * pair + 1] + v * kWidth, P::template factor<1>(pairs));
        store(block.rest[pair][v * kWidth], load_factor_pairs(rests + panel, v % kPanelVectors));
      }
    }
  }
}

}  // namespace

void unpack_factors(appl_layout layout, const TileArgs& t, TallBlock& block) {
  with_products(layout, t.sub_group_size, [&]<class P, class Fitting>(P, Fitting) { unpack_factors<P>(t, block); });
}

void run_tall_sub_groups(appl_layout layout, int rows, const TileArgs& t, const TallBlock& block, TallAhead ahead) {
  with_products(layout, t.sub_group_size, [&]<class P, class Fitting>(P, Fitting) {
    if constexpr (!std::is_same_v<P, Fitting>) {
      if (fits_words(layout, rows, t)) return run_rows<SubGroupTallTile, Fitting, kTallRows>(rows, t, block, ahead);
    }
    run_rows<SubGroupTallTile, P, kTallRows>(rows, t, block, ahead);
  });
}

#endif

}  // namespace appl
