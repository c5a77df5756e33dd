// Tall tiles of words: int8 without VNNI, whose products with bytes would saturate.
//
// AVX2 processors multiply half or a third as many words per cycle as they add. So half of the products become additions (S. Winograd, A
// New Algorithm for Inner Product, IEEE Transactions on Computers C-17, 1968):
//   w0 * x0 + w1 * x1 = (w0 + x1) * (w1 + x0) - w0 * w1 - x0 * x1
// The last two terms depend only on the weights or only on the input: they are summed up once, and a tile's sums start from them. The
// arithmetic is exact: w0 + x1 has nine bits, and groups have at most 256 columns.
#include <algorithm>
#include <cstdint>

#include "tall_products.h"

namespace appl {

#if APPL_WIDTH == 8 && !APPL_VNNI

namespace {

struct WordProducts {
  static constexpr int kColumns = 4;  // per step

  // Adds (even_w + odd_x) * (odd_w + even_x), the words in pairs, for a step's weights at `w`. Three of its four vectors stay in registers,
  // the last is loaded each time: by measurement on Zen and simulation of others, that is best on most cores.
  [[gnu::always_inline]] static void add(Ints (&sums)[kVectors], const uint8_t* w, Words even_x, Words odd_x) {
    const Words even_0 = load<Words>(w), even_1 = load<Words>(w + vector_at(1)), odd_0 = load<Words>(w + kStepBytes);
    const auto& odd_1 = *reinterpret_cast<const Words*>(w + kStepBytes + vector_at(1));
    Words first, second;
    asm("vpaddw %[even_0], %[odd_x], %[first]\n\t"
        "vpaddw %[odd_0], %[even_x], %[second]\n\t"
        "vpaddw %[even_1], %[odd_x], %[odd_x]\n\t"
        "vpaddw %[odd_1], %[even_x], %[even_x]\n\t"
        "vpmaddwd %[second], %[first], %[first]\n\t"
        "vpmaddwd %[even_x], %[odd_x], %[odd_x]\n\t"
        "vpaddd %[first], %[sum_0], %[sum_0]\n\t"
        "vpaddd %[odd_x], %[sum_1], %[sum_1]"
        : [sum_0] "+x"(sums[0]), [sum_1] "+x"(sums[1]), [first] "=&x"(first), [second] "=&x"(second), [even_x] "+x"(even_x),
          [odd_x] "+x"(odd_x)
        : [even_0] "x"(even_0), [odd_0] "x"(odd_0), [even_1] "x"(even_1), [odd_1] "m"(odd_1));
  }
};

template <class P, int Rows>
class WordTallTile {
  using Sums = Ints[Rows][kVectors];
  using Results = Accumulators<Rows, kVectors>;

 public:
  template <bool HasOffset>
  static void run(const TileArgs& t, const TallBlock& block, TallAhead next) {
    Results c;
    c.start(t);
    TallPlace at{t.a, block.weights, EvenPrefetch(next, t.columns / kWordColumns)};
    for (int first = 0, group = 0; first < t.columns; first += t.group_size, ++group) {
      const size_t side = size_t(group) * t.side_stride;
      Sums sums;
#pragma GCC unroll 4
      for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          sums[m][v] = load<Ints>(block.neighbours[group] + v * kWidth) + splat_int(t.neighbours[side + size_t(m)]);
        }
      for (int k = std::min(t.group_size, t.columns - first); k > 0; k -= kWordColumns) multiply(at, sums);
      finish<HasOffset>(sums, t, side, block, group, c);
    }
    c.finish(t);
  }

 private:
  [[gnu::always_inline]] static void multiply(TallPlace& at, Sums& sums) {
    at.ahead.step();
#pragma GCC unroll 2
    for (int s = 0; s < kWordColumns / P::kColumns; ++s) {
#pragma GCC unroll 4
      for (int m = 0; m < Rows; ++m) {
        const uint8_t* row = at.a + s * P::kColumns * 2 + size_t(m) * kRowBytes;
        const Words even = splat_word(load<uint32_t>(row)), odd = splat_word(load<uint32_t>(row + 4));
        P::add(sums[m], at.b + s * 2 * kStepBytes, even, odd);
      }
    }
    at.a += kWordColumns * 2;
    at.b += kWordColumns / P::kColumns * 2 * kStepBytes;
  }

  template <bool HasOffset>
  [[gnu::always_inline]] static void finish(const Sums& sums, const TileArgs& t, size_t side, const TallBlock& block, int group,
                                            Results& c) {
#pragma GCC unroll 4
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const float* w = block.scale[group] + v * kWidth;
        const Floats x = splat(t.scale[side + size_t(m)]);
        if constexpr (HasOffset) {
          add_scaled(c.value[m][v], sums[m][v], x, w, splat(t.scaled_sum[side + size_t(m)]), block.offset[group] + v * kWidth);
        } else {
          add_scaled(c.value[m][v], sums[m][v], x, w);
        }
      }
  }
};

}  // namespace

// Unpacks bytes q + 128 to words q, in the order of Form::kInt16.
void unpack_words(const uint8_t* data, const TileArgs& t, int group, int panel, TallBlock& block) {
  using SignedWords = int16_t __attribute__((vector_size(kWidth * 4)));
  using UnsignedWords = uint16_t __attribute__((vector_size(kWidth * 4)));
  const int first = group * t.group_size, columns = std::min(t.group_size, t.columns - first);
  uint8_t* to = block.weights + size_t(panel) * TallBlock::kPanelBytes + size_t(first) * kPanel * 2;
  for (int v = 0; v < kPanelVectors; ++v) {
    Ints products{};
    for (int k = 0; k < columns; k += WordProducts::kColumns) {
      const Words u = load<Words>(data + (size_t(k) * kPanel + size_t(v) * kWidth * 4));
      const auto even = bit_cast<SignedWords>(u & 0x00ff00ffu) - 128, odd = bit_cast<SignedWords>(bit_cast<UnsignedWords>(u) >> 8) - 128;
      uint8_t* const at = to + size_t(k) * kPanel * 2 + size_t(v) * kWidth * 4;
      store(at, even);
      store(at + kStepBytes, odd);
      products += multiply_pairs(bit_cast<Ints>(even), bit_cast<Ints>(odd));
    }
    store(block.neighbours[group] + panel * kPanel + v * kWidth, -products);
  }
}

void run_tall_words(int rows, const TileArgs& t, const TallBlock& block, TallAhead ahead) {
  run_rows<WordTallTile, WordProducts, kWordRows>(rows, t, block, ahead);
}

#else

void unpack_words(const uint8_t*, const TileArgs&, int, int, TallBlock&) {}
void run_tall_words(int, const TileArgs&, const TallBlock&, TallAhead) {}

#endif

}  // namespace appl
