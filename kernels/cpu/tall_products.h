// The common parts of tall tiles: products from an unpacked block, and prefetches of the next. In an unnamed namespace, like
// integer_products.h.
#pragma once

#include "caches.h"
#include "tall.h"
#include "vnni.h"

#if APPL_WIDTH == 8 || APPL_VNNI

namespace appl {
namespace {

constexpr int kVectors = 2, kStepBytes = kPanel * 4;

// The offset of vector `v` in an unpacked step.
constexpr size_t vector_at(int v) { return v / kPanelVectors * TallBlock::kPanelBytes + v % kPanelVectors * kWidth * 4; }

// The products of a layout: a step is a line of weights and four bytes of input, and kSteps steps are a chunk. Instructions are spelled
// out for the same reason as in simd.h.
//
// With VNNI, sums have 32 bits, start from the sum of a row's inputs times minus the zero point (kStarts), and run through a group.
// With AVX2 each chunk is summed from zero and then folded into 32 bits; the zero points' part is added to the sum of a group.
//
// FittingProducts, without VNNI, are for sub-groups whose inputs are small enough for 16-bit sums: their chunks are longer.
#if APPL_VNNI

template <int Steps>
struct ByteProducts {
  using Sum = Ints;
  static constexpr int kSteps = Steps, kColumns = 4;
  static constexpr bool kStarts = true;
  static Sum first(Words w, Words x) { return add(Sum{}, w, x); }
  static Sum add(Sum sum, Words w, Words x) { return add_byte_dots(sum, w, x); }

  // sum + products * factor, with the factor of a sub-group in each lane.
  static Ints accumulate(Ints sum, Sum products, Words factor) { return sum + products * Ints(factor); }
  template <int Half>
  static Words factor(Words pairs) {
    return int_factor<Half>(pairs);
  }
};

// Chunks whose sums fit 16 bits, with codes of at most 32767 / (4 * 127 * kSteps): their product with a word is one instruction.
template <int Steps>
struct ShortProducts : ByteProducts<Steps> {
  static Ints accumulate(Ints sum, Ints products, Words factor) { return add_pairs(sum, products, Ints(factor)); }
  template <int Half>
  static Words factor(Words pairs) {
    return Half == 0 ? pairs & 0xffffu : pairs >> 16;
  }
};

using Products4 = ShortProducts<4>;
using Products5 = ByteProducts<8>;
using Products6 = ByteProducts<4>;
using ProductsOf16 = Products4;  // for int4 in sub-groups of 16 columns

#else

template <int Steps>
struct ByteProducts {  // codes of at most 32767 / (2 * 127 * kSteps), or inputs small enough for 16-bit sums
  using Sum = Shorts;
  static constexpr int kSteps = Steps, kColumns = 4;
  static constexpr bool kStarts = false;
  static Sum first(Words w, Words x) {
    Sum product;
    asm("vpmaddubsw %2, %1, %0" : "=x"(product) : "x"(w), "x"(x));
    return product;
  }
  static Sum add(Sum sum, Words w, Words x) {
    Sum product;
    asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(w), "x"(x));
    return sum;
  }
  static Ints fold(Sum sum) { return multiply_pairs(bit_cast<Ints>(sum), Ints(no_factor())); }
  static Ints accumulate(Ints sum, Sum products, Words factor) { return add_pairs(sum, bit_cast<Ints>(products), Ints(factor)); }
};

using Products4 = ByteProducts<8>;
using Products5 = ByteProducts<4>;
using Products6 = ByteProducts<2>;
using ProductsOf16 = ByteProducts<4>;  // for int4 in sub-groups of 16 columns
using FittingProducts5 = ByteProducts<8>;
using FittingProducts6 = ByteProducts<4>;

#endif

#if APPL_WIDTH == 8

// c += f32(sum) * x * w. c is in memory, and with AVX2 also w: sums take nearly all registers, and none may be spilled for these.
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

#endif

// Prefetches a few lines at a time: memory serves only so many at once, and a burst of more would delay the products.
class EvenPrefetch {
 public:
  EvenPrefetch(TallAhead next, int steps) : at_(next.data), until_(next.data), step_((next.bytes + size_t(steps) - 1) / size_t(steps)) {}

  [[gnu::always_inline]] void step() {
    for (until_ += step_; at_ < until_; at_ += kLine) __builtin_prefetch(at_, 0, 2);
  }

 private:
  const uint8_t *at_, *until_;
  size_t step_;
};

// The place of the next products.
struct TallPlace {
  const uint8_t *a, *b;
  EvenPrefetch ahead;
};

// Adds the products of one step for Rows rows to earlier sums, or starts them (IsFirst).
template <class P, int Rows, bool IsFirst>
[[gnu::always_inline]] inline void multiply_step(const uint8_t* a, const uint8_t* b, typename P::Sum (&sums)[Rows][kVectors]) {
  const Words w[kVectors] = {load<Words>(b + vector_at(0)), load<Words>(b + vector_at(1))};
#pragma GCC unroll 16
  for (int m = 0; m < Rows; ++m) {
    const Words x = splat_word(load<uint32_t>(a + size_t(m) * kRowBytes));
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[m][v] = IsFirst ? P::first(w[v], x) : P::add(sums[m][v], w[v], x);
  }
}

// Computes the sums of one chunk for Rows rows. Moves the input and the weights to the end of the chunk.
template <class P, int Rows, bool IsFirst>
[[gnu::always_inline]] inline void multiply_chunk(const uint8_t*& a, const uint8_t*& b, typename P::Sum (&sums)[Rows][kVectors]) {
  multiply_step<P, Rows, IsFirst>(a, b, sums);
#pragma GCC unroll kUnrolledSteps
  for (int s = 1; s < P::kSteps; ++s) multiply_step<P, Rows, false>(a + s * 4, b + s * kStepBytes, sums);
  a += P::kSteps * 4;
  b += P::kSteps * kStepBytes;
}

// Calls the tile for weights with offsets or the one for weights without.
template <class Tile>
concept KnowsOffsets = requires(const TileArgs& t, const TallBlock& block, TallAhead ahead) { Tile::template run<true>(t, block, ahead); };

// Calls the tile for the given number of rows.
template <template <class, int> class Tile, class P, int Most, int Rows = 1>
void run_rows(int rows, const TileArgs& t, const TallBlock& block, TallAhead ahead) {
  if constexpr (Rows < Most) {
    if (rows > Rows) return run_rows<Tile, P, Most, Rows + 1>(rows, t, block, ahead);
  }
  using Chosen = Tile<P, Rows>;
  if constexpr (!KnowsOffsets<Chosen>) Chosen::run(t, block, ahead);
  else if (t.has_offset) Chosen::template run<true>(t, block, ahead);
  else Chosen::template run<false>(t, block, ahead);
}

}  // namespace
}  // namespace appl

#endif
