// Tiles over quantized weights and f32 inputs: weights become f32 in registers.
#include <algorithm>

#include "tile.h"
#include "unpack.h"

namespace appl {
namespace {

// The reader of one weight type: `kStep` columns are in the lanes' four bytes (int8), or in their low and then their high nibbles (int4).
// If kUnpacked is a layout, a group is first unpacked to int8's form.
struct Int8Reader {
  static constexpr int kStep = 4;
  static constexpr bool kIsCoded = false;  // codes stand for floats, without zero points and offsets
  static constexpr appl_layout kUnpacked = APPL_INT8;
  static Floats get(Words raw, int column) { return to_floats(Ints((raw >> (8 * column)) & 255u)); }
};

template <appl_layout Layout>
struct PlaneReader : Int8Reader {
  static constexpr appl_layout kUnpacked = Layout;
};

struct Int4Reader {
  static constexpr int kStep = 8;
  static constexpr bool kIsCoded = false;
  static constexpr appl_layout kUnpacked = APPL_INT8;
  static int shift(int column) { return 8 * (column % 4) + 4 * (column / 4); }
  static Floats get(Words raw, int column) { return to_floats(Ints((raw >> shift(column)) & 15u)); }
};

struct F8Reader : Int8Reader {
  static constexpr bool kIsCoded = true;
  static Floats get(Words raw, int column) { return e4m3_to_floats(raw << (24 - 8 * column)); }
};

template <appl_layout Layout>
struct BookReader : Int4Reader {
  static constexpr bool kIsCoded = true;
  static Floats get(Words raw, int column) { return look_up<Layout>(raw >> shift(column)); }
};

// The scales and offsets (which include zero points) of vector v of a panel, for the sub-group that begins at a column of its group.
struct Scales {
  Floats scale, offset;

  Scales(const TileArgs& t, const uint8_t* header, int v, int column) {
    scale = load_scales(header, t.scale_type, v);
    if (t.sub_group_size != 0) scale *= factors(t, header + t.sub_scale_at, v, column);
    offset = -t.zero_point * scale;
    if (!t.has_offset) return;
    const Floats stored = load_offsets(header, t.scale_type, v);
    offset += t.sub_group_size == 0 ? stored : stored * factors(t, header + t.sub_offset_at, v, column);
  }

 private:
  static Floats factors(const TileArgs& t, const uint8_t* at, int v, int column) {
    const int index = column / t.sub_group_size;
    const Words pairs = load_factor_pairs(at + index / 2 * kPanel * 2, v);
    return to_floats(bit_cast<Ints>(index % 2 == 0 ? int_factor<0>(pairs) : int_factor<1>(pairs)));
  }
};

// c += a * weights, for the columns of one step.
template <class Reader, int Rows, int Vectors>
[[gnu::always_inline]] inline void add_columns(const float* a, const uint8_t* b, size_t panel_bytes, const Floats (&scale)[Vectors],
                                               const Floats (&offset)[Vectors], Floats (&c)[Rows][Vectors]) {
#pragma GCC unroll 8
  for (int s = 0; s < Reader::kStep; ++s) {
    Floats w[Vectors];
#pragma GCC unroll 16
    for (int v = 0; v < Vectors; ++v) {
      const Words raw = load<Words>(b + size_t(v / kPanelVectors) * panel_bytes + (v % kPanelVectors) * kWidth * 4);
      w[v] = Reader::get(raw, s) * scale[v];
      if constexpr (!Reader::kIsCoded) w[v] += offset[v];
    }
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m) {
      const Floats x = splat(a[size_t(m) * (kRowBytes / 4) + size_t(s)]);
#pragma GCC unroll 16
      for (int v = 0; v < Vectors; ++v) c[m][v] = multiply_add(c[m][v], x, w[v]);
    }
  }
}

template <class Reader, int Rows, int Panels>
void run_dequantized(const TileArgs& t) {
  constexpr int kVectors = Panels * kPanelVectors;
  Accumulators<Rows, kVectors> c;
  c.start(t);
  Prefetch<Panels, ahead_of_floats(Rows, Reader::kStep)> prefetch(t);
  constexpr bool kUnpacks = Reader::kUnpacked != APPL_INT8;
  constexpr int kUnpackedBytes = kMaxActivationGroup * kPanel;  // for a group of one panel
  alignas(64) uint8_t unpacked[kUnpacks ? Panels * kUnpackedBytes : 1];
  const uint8_t *group = t.b, *header = t.header;
  const int run = t.sub_group_size == 0 ? t.group_size : t.sub_group_size;
  for (int first = 0; first < t.columns; first += t.group_size, group += t.group_stride, header += t.header_stride) {
    const int end = first + t.group_size < t.columns ? first + t.group_size : t.columns;
    if (t.header_stride != 0) prefetch.header(header, t.header_bytes);
    const uint8_t* b = group;
    size_t panel_bytes = t.panel_bytes;
    if constexpr (kUnpacks) {
      for (int p = 0; p < Panels; ++p) {
        unpack_group(Reader::kUnpacked, group + size_t(p) * t.panel_bytes, end - first, unpacked + p * kUnpackedBytes);
      }
      b = unpacked;
      panel_bytes = kUnpackedBytes;
    }
    for (int start = first; start < end; start += run) {
      Floats scale[kVectors], offset[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        const Scales scales(t, header + size_t(v / kPanelVectors) * t.panel_bytes, v % kPanelVectors, start - first);
        scale[v] = scales.scale;
        offset[v] = scales.offset;
      }
      const float* a = reinterpret_cast<const float*>(t.a) + start;
      for (int k = start; k < std::min(start + run, end); k += Reader::kStep, a += Reader::kStep, b += kPanel * 4) {
        prefetch.step(kUnpacks ? group + (b - unpacked) : b);
        add_columns<Reader>(a, b, panel_bytes, scale, offset, c.value);
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
template <int Rows, int Panels>
struct Int5FloatKernel {
  static void run(const TileArgs& t) { run_dequantized<PlaneReader<APPL_INT5>, Rows, Panels>(t); }
};
template <int Rows, int Panels>
struct Int6FloatKernel {
  static void run(const TileArgs& t) { run_dequantized<PlaneReader<APPL_INT6>, Rows, Panels>(t); }
};
template <int Rows, int Panels>
struct F8FloatKernel {
  static void run(const TileArgs& t) { run_dequantized<F8Reader, Rows, Panels>(t); }
};
template <appl_layout Layout>
struct OfBook {
  template <int Rows, int Panels>
  struct FloatKernel {
    static void run(const TileArgs& t) { run_dequantized<BookReader<Layout>, Rows, Panels>(t); }
  };
};

}  // namespace

const TileTable kInt8FloatTiles = make_tiles<Int8FloatKernel>();
const TileTable kInt4FloatTiles = make_tiles<Int4FloatKernel>();
const TileTable kInt5FloatTiles = make_tiles<Int5FloatKernel>();
const TileTable kInt6FloatTiles = make_tiles<Int6FloatKernel>();
const TileTable kF8FloatTiles = make_tiles<F8FloatKernel>();
const TileTable kE2m1FloatTiles = make_tiles<OfBook<APPL_E2M1>::FloatKernel>();
const TileTable kNf4FloatTiles = make_tiles<OfBook<APPL_NF4>::FloatKernel>();
const TileTable kFp4FloatTiles = make_tiles<OfBook<APPL_FP4>::FloatKernel>();
const TileTable kIq4FloatTiles = make_tiles<OfBook<APPL_IQ4_NL>::FloatKernel>();

}  // namespace appl
