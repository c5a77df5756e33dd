// Tall tiles over weights whose groups have sub-groups: the same results as tile_sub_groups.cpp, from an unpacked block.
#include <algorithm>
#include <cstdint>

#include "tall_products.h"

namespace appl {

#if APPL_WIDTH == 8 || APPL_VNNI

namespace {

template <int Rows>
using Sums = Ints[Rows][kVectors];

// Adds the sums of a group's inputs times the factors of the offset, or, without offsets, of the sub-groups.
template <int Rows>
[[gnu::always_inline]] inline void add_rests(const TileArgs& t, const TallBlock& block, int group, size_t count, Sums<Rows>& rests) {
  const int16_t* x = t.sub_sum + size_t(group) * t.side_stride * count;
#pragma GCC unroll 8
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
}

// c += sums * scale of the inputs * `of_weights`, which is the weights' scale or offset.
template <int Rows>
[[gnu::always_inline]] inline void add_scaled(const TileArgs& t, int group, const Sums<Rows>& sums, const float* of_weights,
                                              Accumulators<Rows, kVectors>& c) {
  const float* scale = t.scale + size_t(group) * t.side_stride;
#pragma GCC unroll 16
  for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      c.value[m][v] = multiply_add(c.value[m][v], to_floats(sums[m][v]) * splat(scale[m]), load(of_weights + v * kWidth));
    }
}

template <class P, int Rows>
class SubGroupTallTile {
  using Products = typename P::Sum[Rows][kVectors];
  using Sums = appl::Sums<Rows>;
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
          keep(products, block, group * count + i, sums);
        }
      }
      add_scaled<Rows>(t, group, sums, block.scale[group], c);
    }
    c.finish(t);
  }

 private:
  // Adds the sums of the inputs: times the offset's factors to the results, or times the zero point to the sums.
  [[gnu::always_inline]] static void start(const TileArgs& t, const TallBlock& block, int group, Sums& sums, Results& c) {
    Sums rests = {};
    add_rests<Rows>(t, block, group, size_t(t.num_sub_groups()), rests);
    if (t.has_offset) add_scaled<Rows>(t, group, rests, block.offset[group], c);
    const int zero = int(t.zero_point);
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[m][v] = t.has_offset ? Ints{} : rests[m][v] * -zero;
    asm("" : "+m"(c));  // stays in memory: the registers are needed for products
    keep_apart(sums);
  }

  [[gnu::always_inline]] static void keep(const Products& products, const TallBlock& block, int sub_group, Sums& sums) {
    const Words f[kVectors] = {factor(block, sub_group, 0), factor(block, sub_group, 1)};
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[m][v] = P::accumulate(sums[m][v], products[m][v], f[v]);
    keep_apart(sums);
  }

  [[gnu::always_inline]] static Words factor(const TallBlock& block, int sub_group, int v) {
#if APPL_VNNI
    const Words pairs = load<Words>(block.factors[sub_group / 2][v * kWidth]);
    return sub_group % 2 == 0 ? P::template factor<0>(pairs) : P::template factor<1>(pairs);
#else
    return load<Words>(block.factor[sub_group] + v * kWidth);
#endif
  }

  // With AVX2, sums also stay in memory.
  static void keep_apart([[maybe_unused]] Sums& sums) {
    if constexpr (!APPL_VNNI) asm("" : "+m"(sums));
  }
};

#if APPL_VNNI

// The tile for inputs that are small enough for 16-bit sums of a sub-group, which is one chunk of P. The sums of two sub-groups share a
// lane, and the instruction that multiplies words in pairs multiplies both with their factors. The second sum is the upper word; the first
// is added up below it, starting from 0x8000, so that it never borrows. The sums start with the zero point's part.
template <class P, int Rows>
class PairTallTile {
  using Sums = appl::Sums<Rows>;
  using Results = Accumulators<Rows, kVectors>;
  // The columns of a sub-group, and the number of sub-groups in a group.
  static constexpr int kColumns = P::kSteps * P::kColumns, kCount = kMaxActivationGroup / kColumns;
  static constexpr int32_t kStart = 0x8000;

  // For weights with a zero point: the sums of the rows' inputs times minus the zero point, plus kStart for the first of two sub-groups.
  using Starts = int32_t[Rows][kMaxTallColumns / kColumns];

 public:
  template <bool HasOffset>
  static void run(const TileArgs& t, const TallBlock& block, TallAhead next) {
    Results c;
    c.start(t);
    alignas(64) Starts starts;
    if constexpr (!HasOffset) find_starts(t, starts);
    TallPlace at{t.a, block.weights, EvenPrefetch(next, t.columns / kColumns)};
    for (int group = 0; group < t.columns / kMaxActivationGroup; ++group) {
      if constexpr (HasOffset) {
        Sums rests = {};
        add_rests<Rows>(t, block, group, kCount, rests);
        add_scaled<Rows>(t, group, rests, block.offset[group], c);
        asm("" : "+m"(c));  // stays in memory: the registers are needed for products
      }
      Sums sums = {};
      for (int i = 0; i < kCount; i += 2) add_pair<HasOffset>(starts, block, group * kCount + i, at, sums);
      add_scaled<Rows>(t, group, sums, block.scale[group], c);
      asm("" : "+m"(c));
    }
    c.finish(t);
  }

 private:
  static void find_starts(const TileArgs& t, Starts& starts) {
    using EightInts = int32_t __attribute__((vector_size(32)));
    const int zero = int(t.zero_point);
    const int16_t* x = t.sub_sum;
    for (int at = 0; at < t.columns / kColumns; at += kCount, x += t.side_stride * kCount) {
      for (int m = 0; m < Rows; ++m) {
        for (int i = 0; i < kCount; i += 8) {
          const auto sums = bit_cast<EightInts>(_mm256_cvtepi16_epi32(load<__m128i>(x + m * kCount + i)));
          store(starts[m] + at + i, sums * -zero + EightInts{kStart, 0, kStart, 0, kStart, 0, kStart, 0});
        }
      }
    }
  }

  template <bool HasOffset>
  [[gnu::always_inline]] static void add_pair(const Starts& starts, const TallBlock& block, int first, TallPlace& at, Sums& sums) {
    const auto start = [&](int m, int which) {
      return HasOffset ? splat_int(which == 0 ? kStart : 0) : load_splat(starts[m] + first + which);
    };
    const uint8_t *a = at.a + P::kSteps * 4, *b = at.b + P::kSteps * kStepBytes;  // the second sub-group's
    Sums products;
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) products[m][v] = start(m, 1);
    at.ahead.step();
    multiply_chunk<P, Rows, false>(a, b, products);
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) products[m][v] = Ints(Words(products[m][v]) << 16) + start(m, 0);
    at.ahead.step();
    multiply_chunk<P, Rows, false>(at.a, at.b, products);
    at.a = a;
    at.b = b;
    const int16_t* factors = block.factors[first / 2][0];
    const Ints f[kVectors] = {load<Ints>(factors), load<Ints>(factors + kWidth * 2)};
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[m][v] = add_pairs(sums[m][v], products[m][v] ^ kStart, f[v]);
  }
};

#endif

// Whether the sums of a sub-group's products with these rows (with VNNI, including the zero point's) fit 16 bits. They may not fit if most
// inputs are near the largest of their group.
bool fits_words(appl_layout layout, int rows, const TileArgs& t) {
  const int largest_code = layout == APPL_INT4 ? 15 : layout == APPL_INT5 ? 31 : 63, zero = int(t.zero_point);
  const bool is_centered = APPL_VNNI && !t.has_offset;
  const float* of_group = is_centered ? t.scaled_sum : t.sum;
  Floats most{};
  for (int first = 0; first < t.columns; first += t.group_size, of_group += t.side_stride) {
    int m = 0;
    for (; m + kWidth <= rows; m += kWidth) most = vmax(load(of_group + m), most);
    for (; m < rows; ++m) most[0] = std::max(most[0], of_group[m]);
  }
  return reduce_max(most) <= float(INT16_MAX / (is_centered ? std::max(zero, largest_code - zero) : largest_code));
}

// Calls body(P{}) with the products of a layout.
template <class Body>
void with_products(appl_layout layout, int sub_group_size, Body&& body) {
  if (layout == APPL_INT4) return sub_group_size == 16 ? body(ProductsOf16{}) : body(Products4{});
  if (layout == APPL_INT5) return body(Products5{});
  body(Products6{});
}

}  // namespace

void unpack_factors(appl_layout layout, int rows, const TileArgs& t, TallBlock& block) {
  block.fits_words = fits_words(layout, rows, t);
  const int num_pairs = t.num_sub_groups() / 2;
  const uint8_t* header = t.header;
  for (int first = 0, pair = 0; first < t.columns; first += t.group_size, header += t.header_stride) {
    const uint8_t *factors = header + t.sub_scale_at, *rests = header + (t.has_offset ? t.sub_offset_at : t.sub_scale_at);
    for (int i = 0; i < num_pairs; ++i, ++pair, factors += kPanel * 2, rests += kPanel * 2) {
      for (int v = 0; v < kVectors; ++v) {
        const size_t panel = v / kPanelVectors * t.panel_bytes;
        const Words pairs = load_factor_pairs(factors + panel, v % kPanelVectors);
        store(block.rest[pair][v * kWidth], load_factor_pairs(rests + panel, v % kPanelVectors));
#if APPL_VNNI
        store(block.factors[pair][v * kWidth], pairs);
#else
        store(block.factor[2 * pair] + v * kWidth, word_factor<0>(pairs));
        store(block.factor[2 * pair + 1] + v * kWidth, word_factor<1>(pairs));
#endif
      }
    }
  }
}

void run_tall_sub_groups(appl_layout layout, int rows, const TileArgs& t, const TallBlock& block, TallAhead ahead) {
#if APPL_VNNI
  if (block.fits_words || fits_words(layout, rows, t)) {
    if (t.sub_group_size == 16) return run_rows<PairTallTile, ByteProducts<4>, kTallRows>(rows, t, block, ahead);
    return run_rows<PairTallTile, ByteProducts<8>, kTallRows>(rows, t, block, ahead);
  }
#else
  if (layout != APPL_INT4 && (block.fits_words || fits_words(layout, rows, t))) {
    if (layout == APPL_INT5) return run_rows<SubGroupTallTile, FittingProducts5, kTallRows>(rows, t, block, ahead);
    return run_rows<SubGroupTallTile, FittingProducts6, kTallRows>(rows, t, block, ahead);
  }
#endif
  with_products(layout, t.sub_group_size, [&]<class P>(P) { run_rows<SubGroupTallTile, P, kTallRows>(rows, t, block, ahead); });
}

#endif

}  // namespace appl
