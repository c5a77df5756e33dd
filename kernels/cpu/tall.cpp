#include "tall.h"

#include <algorithm>

#include "tall_products.h"
#include "unpack.h"

namespace appl {

#if APPL_WIDTH == 8

namespace {

// c += f32(sum) * x * w, where c and w lie in memory: sums take all registers but four, and none may be spilled for these.
inline void add_scaled(Floats& c, Ints sum, Floats x, const float* w) {
  Floats result;
  asm("vcvtdq2ps %[sum], %[sum]\n\t"
      "vmulps %[x], %[sum], %[sum]\n\t"
      "vmovaps %[c], %[result]\n\t"
      "vfmadd231ps %[w], %[sum], %[result]\n\t"
      "vmovaps %[result], %[c]"
      : [sum] "+x"(sum), [c] "+m"(c), [result] "=&x"(result)
      : [x] "x"(x), [w] "m"(*reinterpret_cast<const Floats*>(w)));
}

// The same, and c += y * o.
inline void add_scaled(Floats& c, Ints sum, Floats x, const float* w, Floats y, const float* o) {
  Floats result;
  asm("vcvtdq2ps %[sum], %[sum]\n\t"
      "vmulps %[x], %[sum], %[sum]\n\t"
      "vmovaps %[c], %[result]\n\t"
      "vfmadd231ps %[w], %[sum], %[result]\n\t"
      "vfmadd231ps %[o], %[y], %[result]\n\t"
      "vmovaps %[result], %[c]"
      : [sum] "+x"(sum), [c] "+m"(c), [result] "=&x"(result)
      : [x] "x"(x), [w] "m"(*reinterpret_cast<const Floats*>(w)), [y] "x"(y), [o] "m"(*reinterpret_cast<const Floats*>(o)));
}

template <class P, int Rows>
class TallTile {
  using Sums = typename P::Sum[Rows][kVectors];
  using Partial = Ints[Rows][kVectors];
  using Results = Accumulators<Rows, kVectors>;

  // What belongs to a group of the rows' inputs; `zero` is the sum of each row's inputs times minus the zero point.
  struct Side {
    const float *scale, *scaled_sum;
    alignas(64) int32_t zero[kWidth];
  };

 public:
  static void run(const TileArgs& t, const TallBlock& block, TallAhead next) {
    Results c;
    c.start(t);
    constexpr int kChunk = P::kSteps * P::kColumns;
    EvenPrefetch ahead(next, (t.columns + kChunk - 1) / kChunk);
    const uint8_t *a = t.a, *b = block.weights;
    Side side{t.scale, t.scaled_sum, {}};
    const float* sum = t.sum;
    for (int first = 0, group = 0; first < t.columns; first += t.group_size, ++group) {
      const int columns = std::min(t.group_size, t.columns - first);
      if constexpr (P::kHasZero) store(side.zero, to_ints(load(sum) * -t.zero_point));
      Partial partial;
      Sums sums;
      ahead.step();
      multiply_chunk<P, Rows, true>(a, b, sums);
      for (int done = kChunk; done < columns; done += kChunk) {
        if constexpr (!P::kGoesOn) keep(sums, side, done == kChunk, partial);
        ahead.step();
        multiply_chunk<P, Rows, !P::kGoesOn>(a, b, sums);
      }
      const bool is_one = P::kGoesOn || columns <= kChunk;
      if (t.has_offset && is_one) finish<true>(sums, nullptr, side, block, group, c);
      else if (t.has_offset) finish<true>(sums, &partial, side, block, group, c);
      else if (is_one) finish<false>(sums, nullptr, side, block, group, c);
      else finish<false>(sums, &partial, side, block, group, c);
      a = t.a + size_t(first + columns) * (4 / P::kColumns);
      side.scale += t.side_stride;
      side.scaled_sum += t.side_stride;
      sum += t.side_stride;
    }
    c.finish(t);
  }

 private:
  // Of every chunk of a group but the last.
  [[gnu::always_inline]] static void keep(const Sums& sums, const Side& side, bool is_first, Partial& partial) {
#pragma GCC unroll 8
    for (int m = 0; m < Rows; ++m) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const Ints sum = P::fold(sums[m][v]);
        if (!is_first) partial[m][v] += sum;
        else if constexpr (P::kHasZero) partial[m][v] = sum + splat_int(side.zero[m]);
        else partial[m][v] = sum;
      }
    }
    asm("" : "+m"(partial));  // stays in memory: the registers are needed for sums
  }

  // Of the last chunk. Weights with offsets have no zero point.
  template <bool HasOffset>
  [[gnu::always_inline]] static void finish(const Sums& sums, const Partial* partial, const Side& side,
                                            const TallBlock& block, int group, Results& c) {
#pragma GCC unroll 8
    for (int m = 0; m < Rows; ++m) {
      const Floats x = splat(side.scale[m]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        Ints sum = P::fold(sums[m][v]);
        if (partial != nullptr) sum += (*partial)[m][v];
        else if (P::kHasZero && !HasOffset) sum += splat_int(side.zero[m]);
        const float* w = block.scale[group] + v * kWidth;
        if constexpr (HasOffset) {
          add_scaled(c.value[m][v], sum, x, w, splat(side.scaled_sum[m]), block.offset[group] + v * kWidth);
        } else {
          add_scaled(c.value[m][v], sum, x, w);
        }
      }
    }
  }
};

int chunk_columns(appl_layout layout) {
  switch (layout) {
    case APPL_INT4: return Products4::kSteps * Products4::kColumns;
    case APPL_INT5: return Products5::kSteps * Products5::kColumns;
    case APPL_INT6: return Products6::kSteps * Products6::kColumns;
    default: return WordProducts::kSteps * WordProducts::kColumns;
  }
}

// Bytes q + 128 as words q, in the order of Form::kInt16.
void widen_int8(const uint8_t* data, int columns, uint8_t* to) {
  using UnsignedShorts = uint16_t __attribute__((vector_size(kWidth * 4)));
  for (int k = 0; k < columns; k += 4, data += kPanel * 4, to += 2 * kStepBytes) {
    for (int v = 0; v < kVectors; ++v) {
      const Words u = load<Words>(data + v * kWidth * 4);
      const auto even = bit_cast<UnsignedShorts>(u & 0x00ff00ffu), odd = bit_cast<UnsignedShorts>(u) >> 8;
      store(to + v * kWidth * 4, even - 128);
      store(to + kStepBytes + v * kWidth * 4, odd - 128);
    }
  }
}

}  // namespace

bool is_tall(appl_layout layout, int group_size, bool per_channel) {
  return layout >= APPL_INT8 && (per_channel || group_size % chunk_columns(layout) == 0);
}

void unpack_block(appl_layout layout, const TileArgs& t, TallBlock& block) {
  const size_t column_bytes = layout == APPL_INT8 ? 2 * kPanel : kPanel;
  const uint8_t *data = t.b, *header = t.header;
  for (int first = 0, group = 0; first < t.columns; first += t.group_size, ++group) {
    const int columns = std::min(t.group_size, t.columns - first);
    uint8_t* to = block.weights + size_t(first) * column_bytes;
    if (layout == APPL_INT8) widen_int8(data, columns, to);
    else unpack_group(layout, data, columns, to);
    for (int v = 0; v < kVectors; ++v) {
      store(block.scale[group] + v * kWidth, load_scales(header, t.scales_are_f32, v));
      if (t.has_offset) store(block.offset[group] + v * kWidth, load_offsets(header, t.scales_are_f32, v));
    }
    data += t.group_stride;
    header += t.header_stride;
  }
  if (t.sub_group_size != 0) return unpack_factors(t, block);
  // The last chunk of a channel may be short: zeros there are multiplied with whatever the row has.
  const size_t end = size_t(t.columns) * column_bytes;
  const int chunk = chunk_columns(layout), padded = (t.columns + chunk - 1) / chunk * chunk;
  std::memset(block.weights + end, 0, size_t(padded - t.columns) * column_bytes);
}

void run_tall(appl_layout layout, int rows, const TileArgs& t, const TallBlock& block, TallAhead ahead) {
  if (t.sub_group_size != 0) return run_tall_sub_groups(layout, rows, t, block, ahead);
  switch (layout) {
    case APPL_INT4: return run_rows<TallTile, Products4>(rows, t, block, ahead);
    case APPL_INT5: return run_rows<TallTile, Products5>(rows, t, block, ahead);
    case APPL_INT6: return run_rows<TallTile, Products6>(rows, t, block, ahead);
    default: return run_rows<TallTile, WordProducts>(rows, t, block, ahead);
  }
}

#else

bool is_tall(appl_layout, int, bool) { return false; }
void unpack_block(appl_layout, const TileArgs&, TallBlock&) {}
void run_tall(appl_layout, int, const TileArgs&, const TallBlock&, TallAhead) {}

#endif

}  // namespace appl
