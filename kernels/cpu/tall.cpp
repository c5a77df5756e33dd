#include "tall.h"

#include <algorithm>
#include <utility>

#include "caches.h"
#include "tall_products.h"
#include "unpack.h"

namespace appl {

#if APPL_WIDTH == 8 || APPL_VNNI

namespace {

#if APPL_WIDTH == 8

template <class P, int Rows>
class TallTile {
  using Sums = typename P::Sum[Rows][kVectors];
  using Partial = Ints[Rows][kVectors];
  using Results = Accumulators<Rows, kVectors>;

  // The values of the rows' inputs, a vector of rows for each group: scales, scales times sums, and sums times minus the zero point.
  // They are gathered before the products, because they are far apart in memory.
  struct Side {
    alignas(64) float scale[TallBlock::kMaxGroups][kWidth];
    alignas(64) float scaled_sum[TallBlock::kMaxGroups][kWidth];
    alignas(64) int32_t zero[TallBlock::kMaxGroups][kWidth];

    explicit Side(const TileArgs& t) {
      size_t at = 0;
      for (int first = 0, group = 0; first < t.columns; first += t.group_size, ++group, at += t.side_stride) {
        store(scale[group], load(t.scale + at));
        store(zero[group], to_ints(load(t.sum + at) * -t.zero_point));
        if (t.has_offset) store(scaled_sum[group], load(t.scaled_sum + at));
      }
    }
  };

 public:
  static void run(const TileArgs& t, const TallBlock& block, TallAhead next) {
    Results c;
    c.start(t);
    constexpr int kChunk = P::kSteps * P::kColumns;
    EvenPrefetch ahead(next, (t.columns + kChunk - 1) / kChunk);
    const uint8_t *a = t.a, *b = block.weights;
    const Side side(t);
    for (int first = 0, group = 0; first < t.columns; first += t.group_size, ++group) {
      const int columns = std::min(t.group_size, t.columns - first);
      Partial partial;
      Sums sums;
      ahead.step();
      multiply_chunk<P, Rows, true>(a, b, sums);
      for (int done = kChunk; done < columns; done += kChunk) {
        keep(sums, side, group, done == kChunk, partial);
        ahead.step();
        multiply_chunk<P, Rows, true>(a, b, sums);
      }
      const bool is_one = columns <= kChunk;
      if (t.has_offset && is_one) finish<true>(sums, nullptr, side, block, group, c);
      else if (t.has_offset) finish<true>(sums, &partial, side, block, group, c);
      else if (is_one) finish<false>(sums, nullptr, side, block, group, c);
      else finish<false>(sums, &partial, side, block, group, c);
      a = t.a + size_t(first + columns) * (4 / P::kColumns);
    }
    c.finish(t);
  }

 private:
  // Keeps the sums of every chunk of a group except the last.
  [[gnu::always_inline]] static void keep(const Sums& sums, const Side& side, int group, bool is_first, Partial& partial) {
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const Ints sum = P::fold(sums[m][v]);
        partial[m][v] = sum + (is_first ? splat_int(side.zero[group][m]) : partial[m][v]);
      }
    }
    asm("" : "+m"(partial));  // keeps it in memory, because the sums need the registers
  }

  // Scales the sums after the last chunk. Weights with offsets have no zero point.
  template <bool HasOffset>
  [[gnu::always_inline]] static void finish(const Sums& sums, const Partial* partial, const Side& side, const TallBlock& block, int group,
                                            Results& c) {
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m) {
      const Floats x = splat(side.scale[group][m]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        Ints sum = P::fold(sums[m][v]);
        if (partial != nullptr) sum += (*partial)[m][v];
        else if (!HasOffset) sum += splat_int(side.zero[group][m]);
        const float* w = block.scale[group] + v * kWidth;
        if constexpr (HasOffset) {
          add_scaled(c.value[m][v], sum, x, w, splat(side.scaled_sum[group][m]), block.offset[group] + v * kWidth);
        } else {
          add_scaled(c.value[m][v], sum, x, w);
        }
      }
    }
  }
};

#else

inline void add_scaled(Floats& c, Ints sum, Floats x, const float* w) { appl::add_scaled(c, sum, x, load(w)); }
inline void add_scaled(Floats& c, Ints sum, Floats x, const float* w, Floats y, const float* o) {
  appl::add_scaled(c, sum, x, load(w));
  c = multiply_add(c, y, load(o));
}

// While a group is multiplied, the sums of the previous group are scaled, some at each step: so products never wait for the scaling, which
// takes a third of their time in groups of 32 columns. Sums of two groups and the weights share the registers; results stay in memory.
template <class P, int Rows>
class TallTile {
  using Sums = typename P::Sum[Rows][kVectors];
  using Results = Accumulators<Rows, kVectors>;
  static constexpr int kChunk = P::kSteps * P::kColumns, kResults = Rows * kVectors;

  // The factors of a group's sums.
  struct Side {
    const float *scale, *scaled_sum;  // of the rows' inputs
    const float *weight_scale, *offset;
  };
  using Place = TallPlace;

 public:
  template <bool HasOffset>
  static void run(const TileArgs& t, const TallBlock& block, TallAhead next) {
    Results c;
    c.start(t);
    const int groups = (t.columns + t.group_size - 1) / t.group_size;
    alignas(64) int32_t zero[TallBlock::kMaxGroups][kWidth];
    for (int g = 0; g < groups; ++g) store(zero[g], to_ints(load(t.sum + size_t(g) * t.side_stride) * -t.zero_point));
    Place at{t.a, block.weights, EvenPrefetch(next, (t.columns + kChunk - 1) / kChunk)};
    const auto side = [&](int g) {
      const size_t input = size_t(g) * t.side_stride;
      return Side{t.scale + input, t.scaled_sum + input, block.scale[g], block.offset[g]};
    };
    const auto rest = [&](int g) { return (std::min(t.group_size, t.columns - g * t.group_size) + kChunk - 1) / kChunk - 1; };
    Sums even, odd;  // of groups
    multiply<HasOffset, false>(at, rest(0), zero[0], even, odd, {}, c);
    int g = 1;
    for (; g + 1 < groups; g += 2) {
      multiply<HasOffset, true>(at, rest(g), zero[g], odd, even, side(g - 1), c);
      multiply<HasOffset, true>(at, rest(g + 1), zero[g + 1], even, odd, side(g), c);
    }
    if (g < groups) {
      multiply<HasOffset, true>(at, rest(g), zero[g], odd, even, side(g - 1), c);
      scale<HasOffset, 0, kResults>(odd, side(g), c);
    } else {
      scale<HasOffset, 0, kResults>(even, side(g - 1), c);
    }
    c.finish(t);
  }

 private:
  // Computes the sums of a group of a chunk and `rest` more; during the first chunk, it scales the sums of the previous group, if any.
  template <bool HasOffset, bool Scales>
  [[gnu::always_inline]] static void multiply(Place& at, int rest, const int32_t* zero, Sums& sums, const Sums& before, const Side& side,
                                              Results& c) {
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[m][v] = load_splat(zero + m);
    at.ahead.step();
    steps<HasOffset, Scales>(at, sums, before, side, c, std::make_integer_sequence<int, P::kSteps>());
    at.a += P::kSteps * 4;
    at.b += P::kSteps * kStepBytes;
    for (int i = 0; i < rest; ++i) {
      at.ahead.step();
      multiply_chunk<P, Rows, false>(at.a, at.b, sums);
    }
  }

  template <bool HasOffset, bool Scales, int... S>
  [[gnu::always_inline]] static void steps(const Place& at, Sums& sums, const Sums& before, const Side& side, Results& c,
                                           std::integer_sequence<int, S...>) {
    (step<HasOffset, Scales, S>(at, sums, before, side, c), ...);
  }

  template <bool HasOffset, bool Scales, int S>
  [[gnu::always_inline]] static void step(const Place& at, Sums& sums, const Sums& before, const Side& side, Results& c) {
    multiply_step<P, Rows, false>(at.a + S * 4, at.b + S * kStepBytes, sums);
    if constexpr (Scales) scale<HasOffset, kResults * S / P::kSteps, kResults*(S + 1) / P::kSteps>(before, side, c);
  }

  // Adds the sums from First to End, row by row, to the results.
  template <bool HasOffset, int First, int End>
  [[gnu::always_inline]] static void scale(const Sums& sums, const Side& side, Results& c) {
#pragma GCC unroll 32
    for (int i = First; i < End; ++i) {
      const int m = i / kVectors, v = i % kVectors;
      const Floats x = splat(side.scale[m]);
      const float* w = side.weight_scale + v * kWidth;
      if constexpr (HasOffset) add_scaled(c.value[m][v], sums[m][v], x, w, splat(side.scaled_sum[m]), side.offset + v * kWidth);
      else add_scaled(c.value[m][v], sums[m][v], x, w);
    }
  }
};

#endif

// The columns that are multiplied at a time; a group is a multiple of them.
#if APPL_VNNI
int chunk_columns(appl_layout, int group_size) { return group_size % 32 == 0 ? 32 : 16; }
#else
int chunk_columns(appl_layout layout, int) {
  switch (layout) {
    case APPL_INT4: return Products4::kSteps * Products4::kColumns;
    case APPL_E2M1:
    case APPL_INT5: return Products5::kSteps * Products5::kColumns;
    case APPL_INT6: return Products6::kSteps * Products6::kColumns;
    default: return kWordColumns;
  }
}
#endif

// Unpacks the codes of `group` of panel `panel`, which are at `data`.
void unpack_codes(appl_layout layout, const uint8_t* data, const TileArgs& t, int group, int panel, TallBlock& block) {
  const int first = group * t.group_size, columns = std::min(t.group_size, t.columns - first);
  if (has_words(layout)) {
    alignas(64) uint8_t bytes[block_columns(Form::kInt16) * kPanel];
    if (layout != APPL_INT8) unpack_group(layout, data, columns, bytes);
    return unpack_words(layout == APPL_INT8 ? data : bytes, t, group, panel, block);
  }
  uint8_t* const to = block.weights + size_t(panel) * TallBlock::kPanelBytes + size_t(first) * kPanel;
  if (layout == APPL_INT8) std::memcpy(to, data, size_t(columns) * kPanel);
  else unpack_group(layout, data, columns, to);
}

void unpack_scales(appl_layout layout, const TileArgs& t, const uint8_t* header, int group, TallBlock& block) {
  for (int v = 0; v < kVectors; ++v) {
    const uint8_t* at = header + v / kPanelVectors * t.panel_bytes;
    store(block.scale[group] + v * kWidth, load_scales(at, t.scale_type, v % kPanelVectors) * book_unit(layout));
    if (t.has_offset) store(block.offset[group] + v * kWidth, load_offsets(at, t.scale_type, v % kPanelVectors));
  }
}

}  // namespace

int tall_columns() { return APPL_VNNI && has_small_first_level() ? kMaxTallColumns / 2 : kMaxTallColumns; }

bool is_tall(appl_layout layout, int group_size, bool per_channel) {
  return layout >= APPL_INT8 && (per_channel || group_size % chunk_columns(layout, group_size) == 0);
}

void unpack_block(appl_layout layout, int rows, const TileArgs& t, TallBlock& block) {
  const uint8_t *data = t.b, *header = t.header;
  for (int first = 0, group = 0; first < t.columns; first += t.group_size, ++group) {
    for (int p = 0; p < kTallPanels; ++p) unpack_codes(layout, data + size_t(p) * t.panel_bytes, t, group, p, block);
    unpack_scales(layout, t, header, group, block);
    data += t.group_stride;
    header += t.header_stride;
  }
  if (t.sub_group_size != 0) return unpack_factors(layout, rows, t, block);
  if (has_words(layout)) return;
  // The last chunk of a channel may be short: it is padded with zeros, so the row's values there do not matter.
  const int chunk = chunk_columns(layout, t.group_size), padded = (t.columns + chunk - 1) / chunk * chunk;
  for (int p = 0; p < kTallPanels; ++p) {
    uint8_t* end = block.weights + size_t(p) * TallBlock::kPanelBytes + size_t(t.columns) * kPanel;
    std::memset(end, 0, size_t(padded - t.columns) * kPanel);
  }
}

void run_tall(appl_layout layout, int rows, const TileArgs& t, const TallBlock& block, TallAhead ahead) {
  if (t.sub_group_size != 0) return run_tall_sub_groups(layout, rows, t, block, ahead);
  if (has_words(layout)) return run_tall_words(rows, t, block, ahead);
#if APPL_VNNI
  if (chunk_columns(layout, t.group_size) == 32) return run_rows<TallTile, ByteProducts<8>, kTallRows>(rows, t, block, ahead);
  run_rows<TallTile, ByteProducts<4>, kTallRows>(rows, t, block, ahead);
#else
  switch (layout) {
    case APPL_INT4: return run_rows<TallTile, Products4, kTallRows>(rows, t, block, ahead);
    case APPL_E2M1:
    case APPL_INT5: return run_rows<TallTile, Products5, kTallRows>(rows, t, block, ahead);
    default: return run_rows<TallTile, Products6, kTallRows>(rows, t, block, ahead);
  }
#endif
}

#else

int tall_columns() { return kMaxTallColumns; }
bool is_tall(appl_layout, int, bool) { return false; }
void unpack_block(appl_layout, int, const TileArgs&, TallBlock&) {}
void run_tall(appl_layout, int, const TileArgs&, const TallBlock&, TallAhead) {}

#endif

}  // namespace appl
