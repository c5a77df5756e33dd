// The division of a Linear into items for threads, and the order in which an item reads its weights.
#pragma once

#include <algorithm>
#include <cstdint>

#include "linear.h"
#include "memory.h"

namespace appl {

// Whether unpacking the weight's codes first can pay for any number of rows of this input.
bool may_be_tall(const appl_weight& weight, const PreparedShape& input);

// The panels of each half that are computed together, so that the values that `next` rounds as one group are in one item.
int gated_panels(const PreparedShape& next);

// The blocks of rows, chunks of panels, and tiles of one call of at least a row. An item is a block of rows by a chunk of panels.
class Division {
 public:
  Division(const LinearCall& call, int threads);

  bool is_matrix() const { return is_matrix_; }
  bool is_tall() const { return is_tall_; }
  // With few rows, each panel is read once, as a whole, and the input stays in the cache.
  bool streams() const { return !is_tall_ && num_tiles_ <= max_stream_tiles_; }
  bool is_in_order() const { return is_in_order_; }
  Asked level() const { return level_; }
  int rows() const { return rows_; }
  int panels() const { return panels_; }  // the panels to divide: those of each half if the weight has two
  int panels_per_tile() const { return panels_per_tile_; }
  int64_t num_items() const { return int64_t(num_row_blocks_) * num_chunks_; }

  // `next_panel`: the panel that is read after its panels, or the one that follows in memory if the thread does not go on: after the last
  // panel, that is often the next Linear's. kNoPanel: streaming rows do not prefetch data that they do not read themselves.
  static constexpr int kNoPanel = -1;
  struct Item {
    int first_tile, end_tile, first_panel, end_panel, next_panel;
  };
  Item item(int64_t index, bool goes_on) const {
    const int block = int(index / num_chunks_), first_panel = chunk_start(index);
    const int end_panel = std::min(first_panel + panels_per_chunk_, panels_);
    return {block * tiles_per_block_, std::min((block + 1) * tiles_per_block_, num_tiles_), first_panel, end_panel,
            goes_on     ? chunk_start(index + 1)
            : streams() ? kNoPanel
                        : end_panel};
  }
  int rows_per_tile() const { return divided(rows_, num_tiles_); }
  // The tiles share the rows evenly: sizes differ by at most one.
  int tile_start(int tile) const { return int(int64_t(rows_) * tile / num_tiles_); }
  int rows_of(const Item& item) const { return tile_start(item.end_tile) - tile_start(item.first_tile); }

 private:
  void divide_rows(const appl_weight& weight, const PreparedShape& input);
  void order_reads(const appl_weight& weight, bool quantizes);
  void divide_panels(const LinearCall& call, int threads);
  int64_t panels_wanted(const LinearCall& call) const;
  int chunk_start(int64_t index) const { return int(index % num_chunks_) * panels_per_chunk_; }

  Asked level_;
  bool is_matrix_, is_tall_, is_in_order_;
  int rows_, panels_, max_stream_tiles_, num_tiles_, tiles_per_block_, num_row_blocks_, panels_per_tile_, panels_per_chunk_, num_chunks_;
};

}  // namespace appl
