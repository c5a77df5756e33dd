// Tiles over quantized weights and f32 inputs: weights become f32 in registers. Of integers, each weight is scaled; of codes that stand
// for floats, the sum of a group.
#include <algorithm>
#include <type_traits>

#include "code_book.h"
#include "tile.h"
#include "unpack.h"

namespace appl {
namespace {

// The reader of one weight type: `kStep` columns are in the lanes' four bytes (int8), or in their low and then their high nibbles (int4).
// If kUnpacked is a layout, a group is first unpacked to int8's form.
struct Int8Reader {
  static constexpr int kStep = 4;
  static constexpr appl_layout kUnpacked = APPL_INT8;
  static Floats get(Words raw, int column) { return to_floats(Ints((raw >> (8 * column)) & 255u)); }
};

template <appl_layout Layout>
struct PlaneReader : Int8Reader {
  static constexpr appl_layout kUnpacked = Layout;
};

struct Int4Reader {
  static constexpr int kStep = 8;
  static constexpr appl_layout kUnpacked = APPL_INT8;
  static int shift(int column) { return 8 * (column % 4) + 4 * (column / 4); }
  static Floats get(Words raw, int column) { return to_floats(Ints((raw >> shift(column)) & 15u)); }
};

// The reader of a type whose codes stand for floats: a step has kStep columns, in kStepBytes of each panel. The values times kUnit are the
// weights before they are scaled.
struct F8Reader {
  static constexpr int kStep = 4, kStepBytes = kPanel * 4;
  static constexpr float kUnit = 1 / kE4m3Unit;
  static Floats get(const uint8_t* line, int v, int column) {
    const auto pairs = load<HalfWords>(line + (column / 2 * kPanel + v * kWidth) * 2);
    return e4m3_to_floats(column % 2 == 0 ? pairs << 8 : pairs);
  }
};

template <appl_layout Layout>
struct BookReader {
  static constexpr int kStep = 8, kStepBytes = kPanel * 4;
  static constexpr float kUnit = 1;
  static Floats get(const uint8_t* line, int v, int column) {
    return look_up<Layout>(load<Words>(line + v * kWidth * 4) >> Int4Reader::shift(column));
  }
};

// Codes that were decoded for several tiles.
struct DecodedReader {
  static constexpr int kStep = kDecodedStep, kStepBytes = kDecodedStep * kPanel * 4;
  static constexpr float kUnit = 1;
  static Floats get(const uint8_t* at, int v, int column) { return load(at + (column * kPanel + v * kWidth) * 4); }
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
      w[v] = Reader::get(raw, s) * scale[v] + offset[v];
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

// c += sum * scale, with c in memory: the sums of a tile take nearly all registers.
[[gnu::always_inline]] inline void add_group(Floats& c, Floats sum, Floats scale) {
#if defined(__FMA__) && !defined(APPL_EMULATE_AVX512)
  asm("vfmadd213ps %[c], %[scale], %[sum]\n\tvmovaps %[sum], %[c]" : [sum] "+v"(sum), [c] "+m"(c) : [scale] "v"(scale));
#else
  c = c + sum * scale;
#endif
}

// Sums of a group are of unscaled values, and scaled at its end: by all tiles, so a row has the same bits in each.
template <class Reader, int Rows, int Panels>
class CodedTile {
  static constexpr int kVectors = Panels * kPanelVectors;
  using Sums = Floats[Rows][kVectors];
  using Results = Accumulators<Rows, kVectors>;
  static constexpr bool kIsDecoded = std::is_same_v<Reader, DecodedReader>;
  using Prefetch = appl::Prefetch<Panels, kIsDecoded ? Ahead::kNext : ahead_of_integers(Rows, Panels, Reader::kStep, false)>;

 public:
  static void run(const TileArgs& t) {
    Results c;
    c.start(t);
    Prefetch prefetch(t);
    const uint8_t *group = t.b, *header = t.header;
    for (int first = 0; first < t.columns; first += t.group_size, group += t.group_stride, header += t.header_stride) {
      const int columns = std::min(t.group_size, t.columns - first);
      if (t.header_stride != 0 && !kIsDecoded) prefetch.header(header, t.header_bytes);
      Sums sums = {};
      const float* a = reinterpret_cast<const float*>(t.a) + first;
      const uint8_t* b = group;
      for (int k = 0; k < columns; k += Reader::kStep, a += Reader::kStep, b += Reader::kStepBytes) {
        prefetch.step(b);
        add_step(a, b, t.panel_bytes, sums);
      }
      scale(t, header, sums, c);
    }
    c.finish(t);
  }

 private:
  [[gnu::always_inline]] static void add_step(const float* a, const uint8_t* b, size_t panel_bytes, Sums& sums) {
    const auto weights = [&] [[gnu::always_inline]] (int v, int s) {
      return Reader::get(b + size_t(v / kPanelVectors) * panel_bytes, v % kPanelVectors, s);
    };
#pragma GCC unroll 8
    for (int s = 0; s < Reader::kStep; ++s) {
      if constexpr (Rows == 1) {  // a vector at a time: with all of a column, narrow vectors would pass through the stack
        const Floats x = splat(a[s]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sums[0][v] = multiply_add(sums[0][v], x, weights(v, s));
        continue;
      }
      Floats w[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) w[v] = weights(v, s);
#pragma GCC unroll 16
      for (int m = 0; m < Rows; ++m) {
        const Floats x = splat(a[size_t(m) * (kRowBytes / 4) + size_t(s)]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sums[m][v] = multiply_add(sums[m][v], x, w[v]);
      }
    }
  }

  [[gnu::always_inline]] static void scale(const TileArgs& t, const uint8_t* header, const Sums& sums, Results& c) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const Floats scale = load_scales(header + size_t(v / kPanelVectors) * t.panel_bytes, t.scale_type, v % kPanelVectors) * Reader::kUnit;
#pragma GCC unroll 16
      for (int m = 0; m < Rows; ++m) add_group(c.value[m][v], sums[m][v], scale);
    }
  }
};

// Decodes the block of one panel: of each group the scales and then the values, as DecodedReader takes them.
template <class Reader>
void decode_panel(const TileArgs& t, size_t panel, float* to) {
  const uint8_t *group = t.b + panel * t.panel_bytes, *header = t.header + panel * t.panel_bytes;
  for (int first = 0; first < t.columns; first += t.group_size, group += t.group_stride, header += t.header_stride) {
    const int columns = std::min(t.group_size, t.columns - first);
    for (int v = 0; v < kPanelVectors; ++v) store(to + v * kWidth, load_scales(header, t.scale_type, v) * Reader::kUnit);
    to += kPanel;
    const uint8_t* line = group;
    for (int k = 0; k < columns; k += Reader::kStep, line += Reader::kStepBytes) {
#pragma GCC unroll 8
      for (int s = 0; s < Reader::kStep; ++s, to += kPanel) {
        for (int v = 0; v < kPanelVectors; ++v) store(to + v * kWidth, Reader::get(line, v, s));
      }
    }
  }
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
template <class Reader>
struct Of {
  template <int Rows, int Panels>
  using Tile = CodedTile<Reader, Rows, Panels>;
};

}  // namespace

void decode_block(appl_layout layout, int panels, TileArgs& t, DecodedBlock& block) {
  using Decode = void (*)(const TileArgs&, size_t, float*);
  const Decode decode = layout == APPL_F8     ? decode_panel<F8Reader>
                        : layout == APPL_E2M1 ? decode_panel<BookReader<APPL_E2M1>>
                        : layout == APPL_NF4  ? decode_panel<BookReader<APPL_NF4>>
                        : layout == APPL_FP4  ? decode_panel<BookReader<APPL_FP4>>
                                              : decode_panel<BookReader<APPL_IQ4_NL>>;
  for (int p = 0; p < panels; ++p) decode(t, size_t(p), block.panels[p]);
  t.header = reinterpret_cast<const uint8_t*>(block.panels);
  t.b = t.header + kPanel * sizeof(float);
  t.group_stride = t.header_stride = size_t(t.group_size + 1) * kPanel * sizeof(float);
  t.panel_bytes = sizeof(block.panels[0]);
  t.scale_type = APPL_SCALE_F32;
}

const TileTable kInt8FloatTiles = make_tiles<Int8FloatKernel>();
const TileTable kInt4FloatTiles = make_tiles<Int4FloatKernel>();
const TileTable kInt5FloatTiles = make_tiles<Int5FloatKernel>();
const TileTable kInt6FloatTiles = make_tiles<Int6FloatKernel>();
const TileTable kF8FloatTiles = make_tiles<Of<F8Reader>::Tile>();
const TileTable kE2m1FloatTiles = make_tiles<Of<BookReader<APPL_E2M1>>::Tile>();
const TileTable kNf4FloatTiles = make_tiles<Of<BookReader<APPL_NF4>>::Tile>();
const TileTable kFp4FloatTiles = make_tiles<Of<BookReader<APPL_FP4>>::Tile>();
const TileTable kIq4FloatTiles = make_tiles<Of<BookReader<APPL_IQ4_NL>>::Tile>();
const TileTable kDecodedTiles = make_tiles<Of<DecodedReader>::Tile>();

}  // namespace appl
