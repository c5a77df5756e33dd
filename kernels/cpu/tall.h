// Integer tiles for many rows: a block of as many panels as fill two vectors is unpacked once, and all tiles of rows read it
// from the caches.
//
// On AVX2 the products of a group of 32 columns take as long as bringing packed codes into their form and the sums into f32
// does; with VNNI they take less. Here the first is paid once a block, and the second overlaps with the products of the next group.
#pragma once

#include "tile.h"
#include "weight.h"

namespace appl {

constexpr bool kHasTallTiles = APPL_WIDTH == 8 || APPL_VNNI;
constexpr int kTallRows = 6;  // so few that two kinds of sums share the registers
// Of words, without VNNI, that are multiplied at a time; groups, and columns as they are padded, are multiples.
constexpr int kWordColumns = 8;
constexpr int kWordRows = 4;  // of words, without VNNI: four instructions a sum need registers of their own
constexpr int kTallLanes = 2 * kWidth, kTallPanels = (kTallLanes + kPanel - 1) / kPanel;

// Columns of a block, half as many of AVX2's int8 words: what tiles read again and again should fit the first level, beside the rows.
constexpr int kMaxTallColumns = 1024;
int tall_columns();

constexpr bool has_words(appl_layout layout) { return kHasTallTiles && !APPL_VNNI && layout == APPL_INT8; }
constexpr int tall_rows(appl_layout layout) { return has_words(layout) ? kWordRows : kTallRows; }

// One block of columns of kTallPanels panels.
struct TallBlock {
  static constexpr int kMaxGroups = kMaxTallColumns / 16;  // of 16 columns or more, and of words, which are half as many, 8
  static constexpr size_t kPanelBytes = size_t{kMaxTallColumns} * kPanel;
  alignas(64) uint8_t weights[kTallPanels * kPanelBytes];  // [panel][columns / 4][16][4] codes; AVX2's int8 are words: [columns / 2][16][2]
  alignas(64) float scale[kMaxGroups][kTallLanes];
  alignas(64) float offset[kMaxGroups][kTallLanes];  // where the weight has them

  // Where groups have sub-groups: their factors, of two side by side or, without VNNI, of each as the products take it; and of two each
  // what the sums of their inputs are times.
#if APPL_VNNI
  alignas(64) int16_t factors[kMaxGroups / 2][kTallLanes][2];
#else
  alignas(64) uint32_t factor[kMaxGroups][kTallLanes];
#endif
  alignas(64) int16_t rest[kMaxGroups / 2][kTallLanes][2];
  bool fits_words;  // see tall_sub_groups.cpp: of all rows that are multiplied with it

  // Of words: minus the sums of the products of neighbours, as Prepared has them of the input.
  alignas(64) int32_t neighbours[kMaxGroups][kTallLanes];
};

// True where groups of `group_size` columns (of activations) are whole steps of the tile.
bool is_tall(appl_layout layout, int group_size, bool per_channel);

// `t` is where a tile of kTallPanels panels would find the block and its groups, and the first of `rows` rows that are multiplied with it.
void unpack_block(appl_layout layout, int rows, const TileArgs& t, TallBlock& block);

// What is read after the block, as far as one tile asks for it.
struct TallAhead {
  const uint8_t* data;
  size_t bytes;
};

// Of the panels of the next block, whose `bytes` begin at `first` and `panel_bytes` behind it, each tile asks for an even share of one.
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
  const int tiles_;  // that ask for the same panel
  int left_;
  TallAhead share_;
};

// What a tile over the packed weights computes, from the block. `rows` is at most kTallRows.
void run_tall(appl_layout layout, int rows, const TileArgs& t, const TallBlock& block, TallAhead ahead);

// Their parts where groups have sub-groups: the factors, and the tile (tall_sub_groups.cpp).
void unpack_factors(appl_layout layout, int rows, const TileArgs& t, TallBlock& block);
void run_tall_sub_groups(appl_layout layout, int rows, const TileArgs& t, const TallBlock& block, TallAhead ahead);

// The same of words (tall_words.cpp): `group` of panel `panel`, whose packed codes are at `data`, and the tile of kWordRows rows at most.
void unpack_words(const uint8_t* data, const TileArgs& t, int group, int panel, TallBlock& block);
void run_tall_words(int rows, const TileArgs& t, const TallBlock& block, TallAhead ahead);

}  // namespace appl
