// Register tiles: the innermost kernels of a Linear, one function for each weight type and shape of tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "code_book.h"
#include "prepared.h"
#include "simd.h"

namespace appl {

const uint8_t* const kNoEnd = reinterpret_cast<const uint8_t*>(UINTPTR_MAX);  // the end of a tile's prefetches if there are none

// The cache level into which a tile prefetches. kBoth: into the second level, and into the first the data kNearBytes later in each panel.
// ask_next tests only the sign.
enum class Asked : int8_t { kFirst = 0, kSecond = 1, kBoth = -1 };

// One block of columns of MR rows of the input against NP panels of the weight.
struct TileArgs {
  const uint8_t* a;    // row 0 of the input's block; rows are kRowBytes apart
  const uint8_t* b;    // panel 0 at the block's first column
  size_t panel_bytes;  // from panel to panel
  int columns;         // of each segment

  // Prefetching, see below; a caller with its own prefetches leaves `ahead` at the weights, without a step or ends.
  const uint8_t* panel_end;     // the end of panel 0; the other panels end at the same offset
  const uint8_t* ahead;         // the place to prefetch in the next panels
  size_t ahead_step;            // bytes from one prefetch to the next; each step does one for each panel
  const uint8_t* ahead_end;     // the end of a panel's part there; the next panel's part begins
  size_t ahead_jump;            // so many bytes after it
  Asked level = Asked::kFirst;  // for these prefetches and for those of `asked` below

  // Or for a KV cache, whose panels may be anywhere: the panels, at the block's first column, and as many later ones, whose lines at the
  // same offset are prefetched meanwhile.
  const uint8_t* const* panels = nullptr;
  const uint8_t* const* asked_panels = nullptr;

  // Or prefetches of each segment's lines, kPanel * 4 bytes from one to the next; each step does one for each panel.
  const uint8_t* const* asked_segments = nullptr;

  // Or prefetches of the lines from here on, as many as the tile reads. The tile then goes over several sets of rows, panels and sums,
  // such as the heads of a block.
  const uint8_t* asked = nullptr;
  int sets = 1;
  size_t set_input = 0, set_bytes = 0, set_sums = 0;  // from set to set: bytes, bytes, floats

  // Dense tiles continue over further segments of columns, if a sum runs over several blocks of a KV cache or of the input.
  const uint8_t* const* more = nullptr;  // panel 0 of each further segment; null if the segments are consecutive
  int num_more = 0;
  int last_columns = 0;   // of the last further segment
  size_t input_jump = 0;  // from the end of a segment's input to the next one's
  float* c;               // MR rows of NP * 16, ldc floats apart
  size_t ldc;
  bool add;  // adds to c; otherwise overwrites it

  // For quantized weights: the block's groups, in columns and bytes.
  int group_size;
  size_t group_stride;    // from a group's data to the next group's
  const uint8_t* header;  // of panel 0 and the first group
  size_t header_stride;   // 0 for per-channel weights
  appl_scale scale_type;
  bool has_offset;
  float zero_point;
  const float *scale, *sum, *scaled_sum;  // for row 0 and the first group, as in Prepared; a whole vector of sums can be read
  const int32_t* neighbours;              // the same for words
  size_t side_stride;                     // from group to group

  // If groups have sub-groups: their size, the place of their factors in a header, and the sums of the input's sub-groups.
  int sub_group_size = 0;
  size_t sub_scale_at = 0, sub_offset_at = 0, header_bytes = 0;
  const int16_t* sub_sum = nullptr;  // of row 0 and the first group
  int num_sub_groups() const { return sub_group_size == 0 ? 0 : group_size / sub_group_size; }
};

using Tile = void (*)(const TileArgs&);
using Shorts = int16_t __attribute__((vector_size(kWidth * 4)));

// kTileVectors of the registers hold sums.
#if APPL_WIDTH == 16
constexpr int kMaxTileRows = 12, kTileVectors = 24, kRegisters = 32;
#elif APPL_WIDTH == 8
constexpr int kMaxTileRows = 6, kTileVectors = 12, kRegisters = 16;
#else
constexpr int kMaxTileRows = 2, kTileVectors = 8, kRegisters = 16;
#endif
constexpr int kMaxTilePanels = 4;

// tiles[rows - 1][log2(panels)]; null if the sums would not fit.
struct TileTable {
  Tile tiles[kMaxTileRows][3];
};

// With several rows, the weights of a column and one input stay in registers beside the sums.
constexpr bool tile_fits(int rows, int panels) {
  const int weights = panels * kPanelVectors, sums = rows * weights;
  return panels == 1 || (sums <= kTileVectors && (rows == 1 || sums + weights < kRegisters));
}

// The widest tile for `rows` rows, in panels.
constexpr int tile_panels(int rows) { return tile_fits(rows, 4) ? 4 : tile_fits(rows, 2) ? 2 : 1; }

// The same for integer products: one or two rows are faster if sums, results and operands fit in the registers.
constexpr int kStreamVectors = APPL_VNNI ? 0 : 4;
constexpr bool tile_streams(int rows, int panels) { return rows <= 2 && rows * panels * kPanelVectors <= kStreamVectors; }

// The same for groups with sub-groups, with VNNI: the registers hold their sums, the sums into which they are folded, and, for each vector
// of weights, the vector, its line, its factor and the next factor.
constexpr bool sub_groups_fit(int rows, int panels) {
  const int vectors = panels * kPanelVectors;
  return APPL_VNNI ? (2 * rows + 4) * vectors < kRegisters : tile_streams(rows, panels);
}
constexpr int integer_tile_panels(int rows, bool has_sub_groups) {
  const auto fits = [&](int panels) { return has_sub_groups ? sub_groups_fit(rows, panels) : tile_streams(rows, panels); };
  if (fits(4)) return 4;
  if (fits(2)) return 2;
  return fits(1) ? 1 : tile_panels(rows);
}

// Makes the table; `Fits` leaves out tiles that never run.
template <template <int, int> class Kernel, bool (*Fits)(int, int), int Rows = 1>
constexpr void fill_tiles(TileTable& table) {
  table.tiles[Rows - 1][0] = Kernel<Rows, 1>::run;
  if constexpr (Fits(Rows, 2)) table.tiles[Rows - 1][1] = Kernel<Rows, 2>::run;
  if constexpr (Fits(Rows, 4)) table.tiles[Rows - 1][2] = Kernel<Rows, 4>::run;
  if constexpr (Rows < kMaxTileRows) fill_tiles<Kernel, Fits, Rows + 1>(table);
}

template <template <int, int> class Kernel, bool (*Fits)(int, int) = tile_fits>
constexpr TileTable make_tiles() {
  TileTable table{};
  fill_tiles<Kernel, Fits>(table);
  return table;
}

extern const TileTable kF32Tiles, kF16Tiles, kBf16Tiles, kInt8FloatTiles, kInt4FloatTiles;  // on Form::kF32
extern const TileTable kInt5FloatTiles, kInt6FloatTiles, kF8FloatTiles;
extern const TileTable kE2m1FloatTiles, kNf4FloatTiles, kFp4FloatTiles, kIq4FloatTiles, kDecodedTiles;
extern const TileTable kBf16DotTiles;                                               // on Form::kBf16
extern const TileTable kE4m3CodeTiles, kE5m2CodeTiles;                              // of caches (kv_codes.h), on Form::kF32
extern const TileTable kInt8CodeTiles;                                              // the same, on Form::kInt16; their sums are int32
extern const TileTable kInt8Tiles;                                                  // on kInt8Form
extern const TileTable kInt4Tiles, kInt5Tiles, kInt6Tiles, kE2m1Tiles;              // on kInt4Form
extern const TileTable kIq4Tiles;                                                   // on kIq4Form
extern const TileTable kInt4SubGroupTiles, kInt5SubGroupTiles, kInt6SubGroupTiles;  // the same

#if APPL_VNNI
constexpr Form kInt8Form = Form::kInt8, kInt4Form = Form::kInt8;
#elif APPL_WIDTH >= 8
constexpr Form kInt8Form = Form::kInt16, kInt4Form = Form::kInt8;
#else
constexpr Form kInt8Form = Form::kInt16, kInt4Form = Form::kInt16;
#endif
constexpr Form kIq4Form = kInt8Form;  // its values have eight bits
constexpr Form kBf16Form = APPL_BF16_DOT ? Form::kBf16 : Form::kF32;

#if defined(APPL_EMULATE_AVX512)
constexpr int kUnrolledSteps = 1;  // emulated instructions are loops: their unrolled tiles take minutes to compile
#else
constexpr int kUnrolledSteps = 16;
#endif

// A block of panels of codes that stand for floats, decoded once for several tiles: of each group the scales, then the values. A step of
// these tiles has kDecodedStep columns.
constexpr int kDecodedStep = 8;
struct DecodedBlock {
  static constexpr int kMaxGroups = block_columns(Form::kF32) / kMinActivationGroup;
  alignas(64) float panels[kMaxTilePanels][(block_columns(Form::kF32) + kMaxGroups) * kPanel];
};

// Decodes the block that `t` is at, of at most block_columns(Form::kF32) columns; `t` is then at the decoded one, for kDecodedTiles.
void decode_block(appl_layout layout, int panels, TileArgs& t, DecodedBlock& block);

// --- shared by the tile sources --------------------------------------------------------------------------------------

template <int Rows, int Vectors>
struct Accumulators {
  Floats value[Rows][Vectors];

  // Unrolled before the compiler decides what lives in registers: with an index in one loop, all sums pass through the stack.
  void start(const TileArgs& t) { start(t, t.c); }
  void start(const TileArgs& t, const float* c) {
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 16
      for (int v = 0; v < Vectors; ++v) value[m][v] = t.add ? load(c + size_t(m) * t.ldc + v * kWidth) : Floats{};
  }
  void finish(const TileArgs& t) const { finish(t.ldc, t.c); }
  void finish(size_t ldc, float* c) const {
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 16
      for (int v = 0; v < Vectors; ++v) store(c + size_t(m) * ldc + v * kWidth, value[m][v]);
  }
};

// The data that a tile prefetches.
enum class Ahead {
  kNothing,  // none, as out-of-order execution reaches far enough; with Asked::kBoth, the same as kNext
  kNear,     // the data kNearBytes later in each panel, or in the next group of panels, into the first level
  kFar,      // twice as far, into the second level, which has several times as many outstanding misses
  // The same into the second level, and the data kSoonBytes later into the first.
  kNearTwice,
  kFarTwice,
  kNext,  // the next panels, one after the other: memory serves one sequential range faster than several
};
constexpr size_t kNearBytes = 2048, kSoonBytes = 512;

// Measured, for `rows` rows whose lines cost `steps` products each: with few products, a wide core has many lines in flight by itself.
constexpr Ahead ahead_of_floats(int rows, int steps) {
  if (rows > 2) return Ahead::kNext;
  if (kWidth < 16) return Ahead::kNear;
  if (steps > 1) return Ahead::kNext;
  return rows == 1 ? Ahead::kNothing : Ahead::kNear;
}
// The same for integer codes over several panels, of one row or with sub-groups: with VNNI and a small first level, or with one scale per
// row (linear.cpp).
constexpr Ahead ahead_of_integers(int rows, int panels, int steps, bool has_sub_groups) {
  if (APPL_VNNI && panels > 1 && steps > 1 && (rows == 1 || has_sub_groups)) return rows == 1 ? Ahead::kNearTwice : Ahead::kFarTwice;
  return kWidth < 16 && rows == 1 ? Ahead::kFar : ahead_of_floats(rows, steps);
}

// Prefetches a line. The branch is hidden from the compiler, which would otherwise make two loops of it, and spill sums.
[[gnu::always_inline]] inline void ask(const uint8_t* at, bool of_second_level) {
#if defined(__x86_64__)
  if (!__builtin_constant_p(of_second_level)) {
    asm volatile("testb %1, %1\n\tjnz 1f\n\tprefetcht0 %a0\n\tjmp 2f\n1:\tprefetcht1 %a0\n2:" ::"p"(at), "q"(of_second_level) : "cc");
    return;
  }
#endif
  if (of_second_level) __builtin_prefetch(at, 0, 2);
  else __builtin_prefetch(at);
}

// Prefetches `next` and `soon`, or nothing if kOnlyBoth and the level is not Asked::kBoth.
template <bool kOnlyBoth>
[[gnu::always_inline]] inline void ask_next(const uint8_t* next, const uint8_t* soon, Asked level) {
#if defined(__x86_64__)
  if constexpr (kOnlyBoth) {
    asm volatile("testb %2, %2\n\tjns 1f\n\tprefetcht1 %a0\n\tprefetcht0 %a1\n1:" ::"p"(next), "p"(soon), "q"(level) : "cc");
  } else {
    asm volatile(
        "testb %2, %2\n\tjnz 1f\n\tprefetcht0 %a0\n\tjmp 2f\n"
        "1:\tprefetcht1 %a0\n\tjns 2f\n\tprefetcht0 %a1\n2:" ::"p"(next),
        "p"(soon), "q"(level)
        : "cc");
  }
#else
  if (level == Asked::kBoth) __builtin_prefetch(soon);
  if (level == Asked::kBoth || !kOnlyBoth) ask(next, level != Asked::kFirst);
#endif
}

// Prefetches weights: each step of a tile calls it once, and reads `Lines` lines of each panel.
//
// Always inlined, here and below: the compiler would remove a call that only prefetches, as it knows no effect of it.
template <int Panels, Ahead kAhead>
class Prefetch {
 public:
  // Whether the place advances from step to step; the other kinds follow the weights' address.
  static constexpr bool kGoesOn = kAhead == Ahead::kNext || kAhead == Ahead::kNothing;

  explicit Prefetch(const TileArgs& t)
      : panel_bytes_(t.panel_bytes), step_(t.ahead_step), jump_(t.ahead_jump), panel_end_(t.panel_end), next_(t.ahead), end_(t.ahead_end),
        level_(t.level) {}

  void segment() {}
  const uint8_t* panel(const uint8_t* b, int p) const { return b + size_t(p) * panel_bytes_; }

  template <int Lines = 1>
  [[gnu::always_inline]] void step(const uint8_t* b) {
    if constexpr (kGoesOn) next<Lines>(b);
    else near<Lines>(b);
  }

  // Takes over the state of `other`, a copy of this. Only the changed fields are written: a whole copy would be read too early.
  [[gnu::always_inline]] void go_on_from(const Prefetch& other) {
    next_ = other.next_;
    end_ = other.end_;
  }

  // Prefetches the header of a group, which the steps over the group's data do not reach.
  [[gnu::always_inline]] void header(const uint8_t* at, size_t bytes = 1) {
    for (size_t i = 0; i < bytes; i += kPanel * 4) step(at + i);
  }

 private:
  template <int Lines>
  [[gnu::always_inline]] void next(const uint8_t* b) {
    for (int i = 0; i < Panels * Lines; ++i, next_ += step_) {
      ask_next<kAhead == Ahead::kNothing>(next_, b + kNearBytes + line<Lines>(i), level_);
    }
    if (next_ < end_) return;
    next_ += jump_;
    end_ += panel_bytes_;
  }

  template <int Lines>
  [[gnu::always_inline]] void near(const uint8_t* b) const {
    constexpr bool kIsTwice = kAhead == Ahead::kNearTwice || kAhead == Ahead::kFarTwice;
    constexpr bool kIsFar = kAhead == Ahead::kFar || kAhead == Ahead::kFarTwice;
    // Narrow vectors would wait for the second level too.
    const bool of_second_level = kIsFar || kIsTwice || (kWidth == 16 && level_ == Asked::kSecond);
    const uint8_t* at = b + (kIsFar ? 2 : 1) * kNearBytes;
    at += at >= panel_end_ ? (Panels - 1) * panel_bytes_ : 0;
    for (int i = 0; i < Panels * Lines; ++i) {
      ask(at + line<Lines>(i), of_second_level);
      if constexpr (kIsTwice) ask(b + kSoonBytes + line<Lines>(i), false);
    }
  }

  // The offset of line i of a step.
  template <int Lines>
  size_t line(int i) const {
    return size_t(i / Lines) * panel_bytes_ + i % Lines * kPanel * 4;
  }

  size_t panel_bytes_, step_, jump_;
  const uint8_t *panel_end_, *next_, *end_;
  Asked level_;
};

// Takes the place of Prefetch in tiles over a KV cache's panels.
template <int Panels>
class AskedPanels {
 public:
  explicit AskedPanels(const TileArgs& t) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      panel_[p] = t.panels[p] - t.b;
      asked_[p] = t.asked_panels[p] - t.b;
    }
  }

  void segment() {}
  const uint8_t* panel(const uint8_t* b, int p) const { return b + panel_[p]; }
  [[gnu::always_inline]] void step(const uint8_t* b) const {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) __builtin_prefetch(b + asked_[p]);
  }

 private:
  ptrdiff_t panel_[Panels], asked_[Panels];
};

// The same for tiles over a KV cache's segments.
template <int Panels>
class AskedSegments {
 public:
  explicit AskedSegments(const TileArgs& t) : panel_bytes_(t.panel_bytes), next_(t.asked_segments) {}

  const uint8_t* panel(const uint8_t* b, int p) const { return b + size_t(p) * panel_bytes_; }
  [[gnu::always_inline]] void segment() { at_ = *next_++; }
  [[gnu::always_inline]] void step(const uint8_t*) {
    for (int p = 0; p < Panels; ++p, at_ += kPanel * 4) __builtin_prefetch(at_);
  }

 private:
  size_t panel_bytes_;
  const uint8_t* const* next_;
  const uint8_t* at_ = nullptr;
};

// The same for tiles that prefetch one range.
template <int Panels>
class AskedStretch {
 public:
  explicit AskedStretch(const TileArgs& t) : panel_bytes_(t.panel_bytes), next_(t.asked), of_second_level_(t.level != Asked::kFirst) {}

  const uint8_t* panel(const uint8_t* b, int p) const { return b + size_t(p) * panel_bytes_; }
  [[gnu::always_inline]] void step(const uint8_t*) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) ask(next_ + p * kPanel * 4, of_second_level_);
    next_ += Panels * kPanel * 4;
  }

 private:
  size_t panel_bytes_;
  const uint8_t* next_;
  bool of_second_level_;
};

// Loads the scales of a header, vector `v` of the panel's sixteen.
inline Floats load_scales(const uint8_t* at, appl_scale type, int v) {
  if (type == APPL_SCALE_F32) return load(at + v * kWidth * 4);
  if (type == APPL_SCALE_E8M0) return e8m0_to_floats(load<Octets>(at + v * kWidth));
  return f16_to_floats(load<Halves>(at + v * kWidth * 2));
}

// Loads the offsets in the same way; `header` is the start of the header.
inline Floats load_offsets(const uint8_t* header, appl_scale type, int v) {
  return load_scales(header + size_t{kPanel} * scale_bytes(type), type, v);
}

// Loads the scales of an integer layout, which are f32 or f16. With the third type, the largest tiles would keep sums on the stack.
inline Floats load_integer_scales(const uint8_t* at, appl_scale type, int v) {
  return type == APPL_SCALE_F32 ? load(at + v * kWidth * 4) : f16_to_floats(load<Halves>(at + v * kWidth * 2));
}

// Loads the offsets of an integer layout; `header` is the start of the header.
inline Floats load_integer_offsets(const uint8_t* header, appl_scale type, int v) {
  return load_integer_scales(header + size_t{kPanel} * (type == APPL_SCALE_F32 ? 4 : 2), type, v);
}

// Loads the scales of a type of integer products (integer_products.h): of a book's integers, the scales times their unit.
template <class Type>
[[gnu::always_inline]] inline Floats load_scales_of(const uint8_t* at, appl_scale type, int v) {
  if constexpr (Type::kIsBook) return load_scales(at, type, v) * Type::kUnit;
  else return load_integer_scales(at, type, v);
}

// Multiplies 16-bit words, and adds the products in pairs.
inline Ints multiply_pairs(Ints a, Ints b) {
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

// sum + a * b, in pairs.
inline Ints add_pairs(Ints sum, Ints a, Ints b) {
#if APPL_VNNI && !defined(APPL_EMULATE_AVX512)
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
#else
  return sum + multiply_pairs(a, b);
#endif
}

// The factor of 16-bit sums that are only added in pairs.
inline Words no_factor() { return splat_word(0x00010001u); }

// Loads the int8 factors of two sub-groups, [16][2] at `at`, as two words in each row's lane; and one of them in the form that the row's
// products take: for 16-bit sums in both words, for 32-bit sums as a number.
inline Words load_factor_pairs(const uint8_t* at, int v) {
  using PairBytes = int8_t __attribute__((vector_size(kWidth * 2)));
  const auto pairs = load<PairBytes>(at + v * kWidth * 2);
#if APPL_WIDTH == 16 && !defined(APPL_EMULATE_AVX512)  // one instruction, which the compiler would split into halves
  return bit_cast<Words>(_mm512_cvtepi8_epi16(bit_cast<__m256i>(pairs)));
#else
  return bit_cast<Words>(__builtin_convertvector(pairs, Shorts));
#endif
}
template <int Half>
Words word_factor(Words pairs) {
  Shorts order;
  for (int i = 0; i < kWidth * 2; ++i) order[i] = int16_t(i / 2 * 2 + Half);
  return bit_cast<Words>(__builtin_shuffle(bit_cast<Shorts>(pairs), order));
}
template <int Half>
Words int_factor(Words pairs) {
  return bit_cast<Words>(bit_cast<Ints>(Half == 0 ? pairs << 16 : pairs) >> 16);
}

}  // namespace appl
