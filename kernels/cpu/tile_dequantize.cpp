// Tiles over quantized weights and f32 inputs: weights become f32 in registers.
#include "tile.h"

namespace appl {
namespace {

// `kStep` columns lie in the lanes' four bytes (int8), or in their low and then their high nibbles (int4).
struct Int8Reader {
  static constexpr int kStep = 4;
  static Ints get(Words raw, int column) { return Ints((raw >> (8 * column)) & 255u); }
};

struct Int4Reader {
  static constexpr int kStep = 8;
  static Ints get(Words raw, int column) { return Ints((raw >> (8 * (column % 4) + 4 * (column / 4))) & 15u); }
};

template <class Reader, int Rows, int Panels>
void run_dequantized(const TileArgs& t) {
  constexpr int kVectors = Panels * kPanelVectors;
  Accumulators<Rows, kVectors> c;
  c.start(t);
  Prefetch<Rows, Panels> prefetch(t);
  const size_t scale_bytes = size_t{kPanel} * (t.scales_are_f32 ? 4 : 2);
  const uint8_t *group = t.b, *header = t.header;
  for (int first = 0; first < t.columns; first += t.group_size, group += t.group_stride, header += t.header_stride) {
    Floats scale[kVectors], offset[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const uint8_t* at = header + size_t(v / kPanelVectors) * t.panel_bytes;
      scale[v] = load_scales(at, t.scales_are_f32, v % kPanelVectors);
      offset[v] = -t.zero_point * scale[v];
      if (t.has_offset) offset[v] += load_scales(at + scale_bytes, t.scales_are_f32, v % kPanelVectors);
    }
    const int end = first + t.group_size < t.columns ? first + t.group_size : t.columns;
    const uint8_t* b = group;
    const float* a = reinterpret_cast<const float*>(t.a) + first;
    for (int k = first; k < end; k += Reader::kStep, a += Reader::kStep, b += kPanel * 4) {
      prefetch.step(b);
#pragma GCC unroll 8
      for (int s = 0; s < Reader::kStep; ++s) {
        Floats w[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          const Words raw = load<Words>(b + size_t(v / kPanelVectors) * t.panel_bytes + (v % kPanelVectors) * kWidth * 4);
          w[v] = to_floats(Reader::get(raw, s)) * scale[v] + offset[v];
        }
#pragma GCC unroll 16
        for (int m = 0; m < Rows; ++m) {
          const Floats x = splat(a[size_t(m) * (kRowBytes / 4) + size_t(s)]);
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) c.value[m][v] = multiply_add(c.value[m][v], x, w[v]);
        }
      }
    }
  }
  c.finish(t);
}

template <int Rows, int Panels>
struct Int8FloatKernel {
  static void run(const TileArgs& t) { run_dequantized<Int8Reader, Rows, Panels>(t); }
};
template <int Rows, int Panels>
struct Int4FloatKernel {
  static void run(const TileArgs& t) { run_dequantized<Int4Reader, Rows, Panels>(t); }
};

}  // namespace

const TileTable kInt8FloatTiles = make_tiles<Int8FloatKernel>();
const TileTable kInt4FloatTiles = make_tiles<Int4FloatKernel>();

}  // namespace appl
