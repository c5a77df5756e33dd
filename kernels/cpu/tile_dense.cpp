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
#pragma GCC unroll 2
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
#if APPL_BF16_DOT
const TileTable kBf16DotTiles = make_tiles<Bf16DotKernel>();
#else
const TileTable kBf16DotTiles{};
#endif

}  // namespace appl
