// Tiles over dense weights.
#include "tile.h"

namespace appl {
namespace {

// The reader of one weight type: turns `kStep` columns of a panel into vectors of f32.
struct F32Reader {
  static constexpr int kStep = 1, kStepBytes = kPanel * 4;
  static Floats get(const uint8_t* b, int v, int) { return load(b + v * kWidth * 4); }
};

struct F16Reader {
  static constexpr int kStep = 1, kStepBytes = kPanel * 2;
  static Floats get(const uint8_t* b, int v, int) { return f16_to_floats(load<Halves>(b + v * kWidth * 2)); }
};

struct Bf16Reader {
  static constexpr int kStep = 2, kStepBytes = kPanel * 4;
  static Floats get(const uint8_t* b, int v, int column) {
    const Words pair = load<Words>(b + v * kWidth * 4);
    return bit_cast<Floats>(column == 0 ? pair << 16 : pair & 0xffff0000u);
  }
};

// Codes of caches, of floats of eight bits (kv_codes.h), four columns of a row in a word: their bits at the places that f32 has for them.
// The exponent is then too small by the difference of the biases.
template <int Shift, uint32_t Mask>
struct CodeReader {
  static constexpr int kStep = 4, kStepBytes = kPanel * 4;
  static Floats get(const uint8_t* b, int v, int column) {
    const Ints upper = bit_cast<Ints>(load<Words>(b + v * kWidth * 4) << (24 - 8 * column));
    return bit_cast<Floats>(bit_cast<Words>(upper >> Shift) & Mask);  // of the copies of the sign one is kept
  }
};
using E4m3Reader = CodeReader<4, 0x87f00000u>;
using E5m2Reader = CodeReader<3, 0x8fe00000u>;

// Calls body(a, b, columns) for each segment; the body moves `a` and `b` to the end of its columns.
template <class Body>
inline void for_segments(const TileArgs& t, Body&& body) {
  const uint8_t *a = t.a, *b = t.b;
  body(a, b, t.columns);
  for (int i = 0; i < t.num_more; ++i) {
    a += t.input_jump;
    if (t.more != nullptr) b = t.more[i];
    body(a, b, i == t.num_more - 1 ? t.last_columns : t.columns);
  }
}

// The tile of all weight types: Steps::multiply adds the products of `columns` columns, and moves `a` and `b` to their end.
template <class Steps, int Rows, int Panels>
struct DenseTile {
  using Sums = Accumulators<Rows, Panels * kPanelVectors>;

  static void run(const TileArgs& t) {
    if (t.asked != nullptr) run_sets(t);
    else if (t.panels != nullptr) run_segments<AskedPanels<Panels>>(t);
    else if (t.asked_segments != nullptr) run_segments<AskedSegments<Panels>>(t);
    else run_segments<Prefetch<Panels, ahead_of_floats(Rows, 1)>>(t);
  }

 private:
  template <class Ahead>
  static void run_segments(const TileArgs& t) {
    Sums c;
    c.start(t);
    Ahead ahead(t);
    for_segments(t, [&](const uint8_t*& a, const uint8_t*& b, int columns) {
      ahead.segment();
      Steps::multiply(a, b, columns, ahead, c);
    });
    c.finish(t);
  }

  static void run_sets(const TileArgs& t) {
    AskedStretch<Panels> ahead(t);
    const uint8_t *input = t.a, *panels = t.b;
    float* sums = t.c;
    for (int i = t.sets; i > 0; --i, input += t.set_input, panels += t.set_bytes, sums += t.set_sums) {
      const uint8_t *a = input, *b = panels;
      Sums c;
      c.start(t, sums);
      Steps::multiply(a, b, t.columns, ahead, c);
      c.finish(t.ldc, sums);
    }
  }
};

template <class Reader, int Rows, int Panels>
struct FloatSteps {
  static constexpr int kVectors = Panels * kPanelVectors;

  template <class Ahead>
  [[gnu::always_inline]] static void multiply(const uint8_t*& a, const uint8_t*& b, int columns, Ahead& ahead,
                                              Accumulators<Rows, kVectors>& c) {
    for (int k = 0; k < columns; k += Reader::kStep, a += Reader::kStep * sizeof(float), b += Reader::kStepBytes) {
      ahead.step(b);
#pragma GCC unroll 4
      for (int s = 0; s < Reader::kStep; ++s) {
        Floats w[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          w[v] = Reader::get(ahead.panel(b, v / kPanelVectors), v % kPanelVectors, s);
        }
#pragma GCC unroll 16
        for (int m = 0; m < Rows; ++m) {
          const Floats x = splat(load<float>(a + size_t(m) * kRowBytes + size_t(s) * sizeof(float)));
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) c.value[m][v] = multiply_add(c.value[m][v], x, w[v]);
        }
      }
    }
  }
};
template <int Rows, int Panels>
using F32Kernel = DenseTile<FloatSteps<F32Reader, Rows, Panels>, Rows, Panels>;
template <int Rows, int Panels>
using F16Kernel = DenseTile<FloatSteps<F16Reader, Rows, Panels>, Rows, Panels>;
template <int Rows, int Panels>
using Bf16Kernel = DenseTile<FloatSteps<Bf16Reader, Rows, Panels>, Rows, Panels>;

template <int Rows, int Panels>
using E4m3CodeKernel = DenseTile<FloatSteps<E4m3Reader, Rows, Panels>, Rows, Panels>;
template <int Rows, int Panels>
using E5m2CodeKernel = DenseTile<FloatSteps<E5m2Reader, Rows, Panels>, Rows, Panels>;

// Int8 codes of caches, four columns of a row in a word: those of the lower bytes of its halves, and those of the upper. Few sums are in
// two parts, as each product would wait for the one before.
template <int Rows, int Panels>
struct CodeSteps {
  static constexpr int kVectors = Panels * kPanelVectors;
  static constexpr int kParts = 2 * Rows * kVectors <= kTileVectors ? 2 : 1;

  template <class Ahead>
  [[gnu::always_inline]] static void multiply(const uint8_t*& a, const uint8_t*& b, int columns, Ahead& ahead,
                                              Accumulators<Rows, kVectors>& c) {
    Ints sums[kParts][Rows][kVectors]{};
    for_sums([&](int m, int v) { sums[0][m][v] = bit_cast<Ints>(c.value[m][v]); });
    for (int k = 0; k < columns; k += 4, a += 8, b += kPanel * 4) {
      ahead.step(b);
#pragma GCC unroll 2
      for (int upper = 0; upper < 2; ++upper) {
        Ints w[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          const Shorts codes = load<Shorts>(ahead.panel(b, v / kPanelVectors) + v % kPanelVectors * kWidth * 4);
          w[v] = bit_cast<Ints>((upper != 0 ? codes : codes << 8) >> 8);
        }
#pragma GCC unroll 16
        for (int m = 0; m < Rows; ++m) {
          const Ints x = bit_cast<Ints>(splat_word(load<uint32_t>(a + size_t(m) * kRowBytes + size_t(upper) * 4)));
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) sums[upper % kParts][m][v] = add_pairs(sums[upper % kParts][m][v], x, w[v]);
        }
      }
    }
    for_sums([&](int m, int v) { c.value[m][v] = bit_cast<Floats>(kParts == 1 ? sums[0][m][v] : sums[0][m][v] + sums[kParts - 1][m][v]); });
  }

 private:
  template <class Body>
  [[gnu::always_inline]] static void for_sums(Body&& body) {
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) body(m, v);
  }
};
template <int Rows, int Panels>
using Int8CodeKernel = DenseTile<CodeSteps<Rows, Panels>, Rows, Panels>;

#if APPL_BF16_DOT
template <int Rows, int Panels>
struct Bf16DotSteps {
  static constexpr int kVectors = Panels * kPanelVectors;

  template <class Ahead>
  [[gnu::always_inline]] static void multiply(const uint8_t*& a, const uint8_t*& b, int columns, Ahead& ahead,
                                              Accumulators<Rows, kVectors>& c) {
    for (int k = 0; k < columns; k += 2, a += 4, b += kPanel * 4) {
      ahead.step(b);
      Words w[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) w[v] = load<Words>(ahead.panel(b, v));
#pragma GCC unroll 16
      for (int m = 0; m < Rows; ++m) {
        const Words x = splat_word(load<uint32_t>(a + size_t(m) * kRowBytes));
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          c.value[m][v] =
              bit_cast<Floats>(_mm512_dpbf16_ps(bit_cast<__m512>(c.value[m][v]), bit_cast<__m512bh>(x), bit_cast<__m512bh>(w[v])));
        }
      }
    }
  }
};
template <int Rows, int Panels>
using Bf16DotKernel = DenseTile<Bf16DotSteps<Rows, Panels>, Rows, Panels>;
#endif

}  // namespace

const TileTable kF32Tiles = make_tiles<F32Kernel>();
const TileTable kF16Tiles = make_tiles<F16Kernel>();
const TileTable kBf16Tiles = make_tiles<Bf16Kernel>();
const TileTable kE4m3CodeTiles = make_tiles<E4m3CodeKernel>();
const TileTable kE5m2CodeTiles = make_tiles<E5m2CodeKernel>();
const TileTable kInt8CodeTiles = make_tiles<Int8CodeKernel>();
#if APPL_BF16_DOT
const TileTable kBf16DotTiles = make_tiles<Bf16DotKernel>();
#else
const TileTable kBf16DotTiles{};
#endif

}  // namespace appl
