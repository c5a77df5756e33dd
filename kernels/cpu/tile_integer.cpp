// Tiles over quantized weights and int8 inputs: integer dot products a group, scaled into f32 sums.
//
// Weights are unsigned bytes (q + 128, or a nibble), inputs signed. The zero point is taken out by the sum of the inputs:
// sum((u - z) x) = sum(u x) - z sum(x). No step can saturate:
//   VNNI      vpdpbusd adds into 32 bits;
//   int4      vpmaddubsw pairs are at most 2 * 15 * 127 = 3810, and eight of them fit 16 bits;
//   int8      vpmaddwd on weights widened to 16 bits.
#include "tile.h"

namespace appl {
namespace {

using Shorts = int16_t __attribute__((vector_size(kWidth * 4)));

inline Ints multiply_add_pairs(Ints a, Ints b) {
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

// A group's dot products for one weight byte quad a lane: add(u, a) for unsigned weight bytes u and four inputs at a.
#if APPL_VNNI
struct ByteDot {
  Ints sum{};
  void add(Words u, const uint8_t* a) {
    sum = bit_cast<Ints>(_mm512_dpbusd_epi32(bit_cast<__m512i>(sum), bit_cast<__m512i>(u),
                                             bit_cast<__m512i>(splat_word(load<uint32_t>(a)))));
  }
  void fold() {}
};
using NibbleDot = ByteDot;
#else
struct ByteDot {
  Ints sum{};
  void add(Words u, const uint8_t* a) {
    const Ints even = Ints(u & 0x00ff00ffu), odd = Ints((u >> 8) & 0x00ff00ffu);
    sum += multiply_add_pairs(even, Ints(splat_word(load<uint32_t>(a))));
    sum += multiply_add_pairs(odd, Ints(splat_word(load<uint32_t>(a + 4))));
  }
  void fold() {}
};
#if APPL_WIDTH == 4
using NibbleDot = ByteDot;
#else
struct NibbleDot {
  Ints sum{};
  Shorts pairs{};
  void add(Words u, const uint8_t* a) {
    const Words x = splat_word(load<uint32_t>(a));
#if APPL_WIDTH == 16
    pairs += bit_cast<Shorts>(_mm512_maddubs_epi16(bit_cast<__m512i>(u), bit_cast<__m512i>(x)));
#else
    pairs += bit_cast<Shorts>(_mm256_maddubs_epi16(bit_cast<__m256i>(u), bit_cast<__m256i>(x)));
#endif
  }
  void fold() {  // at most eight additions after the last
    sum += multiply_add_pairs(bit_cast<Ints>(pairs), Ints(splat_word(0x00010001u)));
    pairs = Shorts{};
  }
};
#endif
#endif

constexpr int kPrefetchBytes = 2048;
constexpr int kFoldColumns = 32;

template <int Rows, int Panels>
struct Int8Kernel {
  static constexpr int kVectors = Panels * kPanelVectors;
  static constexpr int kInputBytes = column_bytes(kInt8Form);
  using Dot = ByteDot;

  static void group(const TileArgs& t, const uint8_t* a, const uint8_t* b, int columns, Dot (&dot)[Rows][kVectors]) {
    for (int k = 0; k < columns; k += 4, a += 4 * kInputBytes, b += kPanel * 4) {
      if constexpr (Rows <= 2) {
        for (int p = 0; p < Panels; ++p) __builtin_prefetch(b + size_t(p) * t.panel_bytes + kPrefetchBytes);
      }
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const Words u = load<Words>(b + size_t(v / kPanelVectors) * t.panel_bytes + (v % kPanelVectors) * kWidth * 4);
#pragma GCC unroll 16
        for (int m = 0; m < Rows; ++m) dot[m][v].add(u, a + size_t(m) * kRowBytes);
      }
    }
  }
};

template <int Rows, int Panels>
struct Int4Kernel {
  static constexpr int kVectors = Panels * kPanelVectors;
  static constexpr int kInputBytes = column_bytes(kInt4Form);
  using Dot = NibbleDot;

  static void group(const TileArgs& t, const uint8_t* a, const uint8_t* b, int columns, Dot (&dot)[Rows][kVectors]) {
    for (int first = 0; first < columns; first += kFoldColumns) {
      const int end = first + kFoldColumns < columns ? first + kFoldColumns : columns;
      for (int k = first; k < end; k += 8, a += 8 * kInputBytes, b += kPanel * 4) {
        if constexpr (Rows <= 2) {
          for (int p = 0; p < Panels; ++p) __builtin_prefetch(b + size_t(p) * t.panel_bytes + kPrefetchBytes);
        }
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          const Words u = load<Words>(b + size_t(v / kPanelVectors) * t.panel_bytes + (v % kPanelVectors) * kWidth * 4);
          const Words low = u & 0x0f0f0f0fu, high = (u >> 4) & 0x0f0f0f0fu;
#pragma GCC unroll 16
          for (int m = 0; m < Rows; ++m) {
            dot[m][v].add(low, a + size_t(m) * kRowBytes);
            dot[m][v].add(high, a + size_t(m) * kRowBytes + 4 * kInputBytes);
          }
        }
      }
      for (auto& row : dot)
        for (auto& d : row) d.fold();
    }
  }
};

template <template <int, int> class Kernel, int Rows, int Panels>
void run_integers(const TileArgs& t) {
  using K = Kernel<Rows, Panels>;
  constexpr int kVectors = K::kVectors;
  Accumulators<Rows, kVectors> c;
  c.start(t);
  const size_t scale_bytes = size_t{kPanel} * (t.scales_are_f32 ? 4 : 2);
  const uint8_t *a = t.a, *b = t.b, *header = t.header;
  const float *x_scale = t.scale, *x_sum = t.sum, *x_scaled_sum = t.scaled_sum;
  for (int first = 0; first < t.columns; first += t.group_size) {
    typename K::Dot dot[Rows][kVectors];
    const int columns = first + t.group_size < t.columns ? t.group_size : t.columns - first;
    K::group(t, a, b, columns, dot);
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const uint8_t* at = header + size_t(v / kPanelVectors) * t.panel_bytes;
      const Floats scale = load_scales(at, t.scales_are_f32, v % kPanelVectors);
#pragma GCC unroll 16
      for (int m = 0; m < Rows; ++m) {
        const Floats products = to_floats(dot[m][v].sum) - splat(t.zero_point * x_sum[m]);
        c.value[m][v] += products * splat(x_scale[m]) * scale;
      }
      if (t.has_offset) {
        const Floats offset = load_scales(at + scale_bytes, t.scales_are_f32, v % kPanelVectors);
#pragma GCC unroll 16
        for (int m = 0; m < Rows; ++m) c.value[m][v] += splat(x_scaled_sum[m]) * offset;
      }
    }
    a += columns * K::kInputBytes;
    b += t.group_stride;
    header += t.header_stride;
    x_scale += t.side_stride;
    x_sum += t.side_stride;
    x_scaled_sum += t.side_stride;
  }
  c.finish(t);
}

template <int Rows, int Panels>
struct Int8Tile {
  static void run(const TileArgs& t) { run_integers<Int8Kernel, Rows, Panels>(t); }
};
template <int Rows, int Panels>
struct Int4Tile {
  static void run(const TileArgs& t) { run_integers<Int4Kernel, Rows, Panels>(t); }
};

}  // namespace

const TileTable kInt8Tiles = make_tiles<Int8Tile>();
const TileTable kInt4Tiles = make_tiles<Int4Tile>();

}  // namespace appl
