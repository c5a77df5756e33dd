// Integer tiles for many rows: a block of a panel is unpacked once, and all tiles of rows read it from the first level.
//
// On AVX2 the products of a group of 32 columns take as long as bringing packed codes into their form and the sums into f32
// does. Here the first is paid once a block, and the second overlaps with the products of the next group.
#pragma once

#include "tile.h"
#include "weight.h"

namespace appl {

constexpr bool kHasTallTiles = APPL_WIDTH == 8;

// One block of columns of one panel.
struct TallBlock {
  static constexpr int kMaxGroups = 1024 / 16;
  alignas(64) uint8_t weights[kRowBytes * kPanel];  // [columns / 4][16][4] codes, or of int8 [columns / 2][16][2] words
  alignas(64) float scale[kMaxGroups][kPanel];
  alignas(64) float offset[kMaxGroups][kPanel];     // where the weight has them

  // Where groups have sub-groups: the factor of each, in both words, and of two each what the sums of their inputs are times.
  alignas(64) int16_t factor[kMaxGroups][kPanel][2];
  alignas(64) int16_t rest[kMaxGroups / 2][kPanel][2];
};

// True where groups of `group_size` columns (of activations) are whole steps of the tile.
bool is_tall(appl_layout layout, int group_size, bool per_channel);

// `t` is where a tile of one panel would find the block and its groups.
void unpack_block(appl_layout layout, const TileArgs& t, TallBlock& block);

// What is read after the block, as far as one tile asks for it.
struct TallAhead {
  const uint8_t* data;
  size_t bytes;
};

// What a tile over the packed weights computes, from the block. `rows` is at most kMaxTileRows.
void run_tall(appl_layout layout, int rows, const TileArgs& t, const TallBlock& block, TallAhead ahead);

// Their parts where groups have sub-groups: the factors, and the tile (tall_sub_groups.cpp).
void unpack_factors(const TileArgs& t, TallBlock& block);
void run_tall_sub_groups(appl_layout layout, int rows, const TileArgs& t, const TallBlock& block, TallAhead ahead);

}  // namespace appl
