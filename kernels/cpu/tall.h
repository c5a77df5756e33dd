// Integer tiles for many rows: a block of as many panels as fill two vectors is unpacked once, and all tiles of rows read it
// from the caches.
//
// On AVX2 the products of a group of 32 columns take as long as unpacking the codes and scaling the sums to f32; with VNNI they take
// less. Here codes are unpacked once per block, and the scaling overlaps with the products of the next group.
#pragma once

#include "tile.h"
#include "weight.h"

namespace appl {

constexpr bool kHasTallTiles = APPL_WIDTH == 8 || APPL_VNNI;
constexpr int kTallRows = 6;  // few enough that two kinds of sums share the registers
// The columns of words (without VNNI) that are multiplied at a time; groups and padded columns are multiples.
constexpr int kWordColumns = 8;
constexpr int kWordRows = 4;  // rows with words (without VNNI): the four instructions per sum need registers too
constexpr int kTallLanes = 2 * kWidth, kTallPanels = (kTallLanes + kPanel - 1) / kPanel;

// The columns of a block, half as many for AVX2's int8 words: the block, which tiles read repeatedly, should fit in the first level.
constexpr int kMaxTallColumns = 1024;
int tall_columns();

constexpr bool has_words(appl_layout layout) { return kHasTallTiles && !APPL_VNNI && (layout == APPL_INT8 || layout == APPL_IQ4_NL); }
constexpr int tall_rows(appl_layout layout) { return has_words(layout) ? kWordRows : kTallRows; }

// One block of columns of kTallPanels panels.
struct TallBlock {
  static constexpr int kMaxGroups = kMaxTallColumns / 16;  // groups have 16 columns or more; with words, half as many in groups of 8
  static constexpr size_t kPanelBytes = size_t{kMaxTallColumns} * kPanel;
  alignas(64) uint8_t weights[kTallPanels * kPanelBytes];  // [panel][columns / 4][16][4] codes; AVX2's words: [columns / 2][16][2]
  alignas(64) float scale[kMaxGroups][kTallLanes];
  alignas(64) float offset[kMaxGroups][kTallLanes];  // if the weight has them

  // If groups have sub-groups: their factors, in pairs or, without VNNI, one by one in the form that the products take; and in pairs the
  // factors of the sums of their inputs.
#if APPL_VNNI
  alignas(64) int16_t factors[kMaxGroups / 2][kTallLanes][2];
#else
  alignas(64) uint32_t factor[kMaxGroups][kTallLanes];
#endif
  alignas(64) int16_t rest[kMaxGroups / 2][kTallLanes][2];
  bool fits_words;  // see tall_sub_groups.cpp: true for all rows that are multiplied with the block

  // For words: minus the sums of the products of neighbours, like Prepared::neighbours of the input.
  alignas(64) int32_t neighbours[kMaxGroups][kTallLanes];
};

// Whether groups of `group_size` columns (of activations) are whole steps of the tile.
bool is_tall(appl_layout layout, int group_size, bool per_channel);

// Unpacks a block. `t` has the place of the block and its groups, as for a tile of kTallPanels panels, and the first of `rows` rows.
void unpack_block(appl_layout layout, int rows, const TileArgs& t, TallBlock& block);

// The part of the data after the block that one tile prefetches.
struct TallAhead {
  const uint8_t* data;
  size_t bytes;
};

// Divides the prefetching of the next block: its panels have `bytes` each, at `first` and then every `panel_bytes`; each tile prefetches an
// equal share of one panel.
class TallAsking {
 public:
  TallAsking(const uint8_t* first, size_t bytes, size_t panel_bytes, int tiles)
      : panel_(first), panel_bytes_(panel_bytes), tiles_(divided(tiles, kTallPanels)), left_(tiles_) {
    share_ = {first, (bytes + size_t(tiles_) - 1) / size_t(tiles_)};
  }

  TallAhead next() {
    if (left_-- == 0) {
      left_ = tiles_ - 1;
      share_.data = panel_ += panel_bytes_;
    }
    const TallAhead share = share_;
    share_.data += share_.bytes;
    return share;
  }

 private:
  const uint8_t* panel_;
  const size_t panel_bytes_;
  const int tiles_;  // the tiles that prefetch the same panel
  int left_;
  TallAhead share_;
};

// Computes a tile from the block, with the same result as from the packed weights. `rows` is at most kTallRows.
void run_tall(appl_layout layout, int rows, const TileArgs& t, const TallBlock& block, TallAhead ahead);

// The parts for groups with sub-groups: the factors, and the tile (tall_sub_groups.cpp).
void unpack_factors(appl_layout layout, int rows, const TileArgs& t, TallBlock& block);
void run_tall_sub_groups(appl_layout layout, int rows, const TileArgs& t, const TallBlock& block, TallAhead ahead);

// The parts for words (tall_words.cpp): unpacks `group` of panel `panel`, whose codes are at `data`; and a tile of up to kWordRows rows.
void unpack_words(const uint8_t* data, const TileArgs& t, int group, int panel, TallBlock& block);
void run_tall_words(int rows, const TileArgs& t, const TallBlock& block, TallAhead ahead);

}  // namespace appl
