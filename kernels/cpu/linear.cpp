#include "linear.h"

#include <algorithm>
#include <limits>

#include "activation.h"
#include "caches.h"
#include "division.h"
#include "matrix.h"
#include "tall.h"

namespace appl {
namespace {

const TileTable& tiles_for(const appl_weight& weight, Form form) {
  const bool floats = form == Form::kF32;
  if (weight.sub_group_size != 0 && !floats) {
    switch (weight.layout) {
      case APPL_INT4: return kInt4SubGroupTiles;
      case APPL_INT5: return kInt5SubGroupTiles;
      default: return kInt6SubGroupTiles;
    }
  }
  switch (weight.layout) {
    case APPL_F32: return kF32Tiles;
    case APPL_F16: return kF16Tiles;
    case APPL_BF16: return floats ? kBf16Tiles : kBf16DotTiles;
    case APPL_INT8: return floats ? kInt8FloatTiles : kInt8Tiles;
    case APPL_INT4: return floats ? kInt4FloatTiles : kInt4Tiles;
    case APPL_INT5: return floats ? kInt5FloatTiles : kInt5Tiles;
    case APPL_F8: return kF8FloatTiles;
    case APPL_E2M1: return floats ? kE2m1FloatTiles : kE2m1Tiles;
    case APPL_NF4: return kNf4FloatTiles;
    case APPL_FP4: return kFp4FloatTiles;
    case APPL_IQ4_NL: return floats ? kIq4FloatTiles : kIq4Tiles;
    default: return floats ? kInt6FloatTiles : kInt6Tiles;
  }
}

// The bytes of sixteen rows of one column.
size_t column_panel_bytes(appl_layout layout) {
  switch (layout) {
    case APPL_F32: return 64;
    case APPL_F16:
    case APPL_BF16: return 32;
    case APPL_INT8:
    case APPL_F8: return 16;
    case APPL_INT5: return 10;
    case APPL_INT6: return 12;
    default: return 8;
  }
}

constexpr size_t kAheadBytes = 128 << 10;     // a thread prefetches so far ahead; they must stay in the second level until their turn
constexpr size_t kNearAheadBytes = 12 << 10;  // the same in the order of addresses; they must stay in the first level
constexpr size_t kFarAheadBytes = 32 << 10;   // the same into the second level
constexpr int kCodedColumns = 256;            // of a channel that are summed before they are scaled: the same for every number of rows
constexpr int kMostTileRows = kHasMatrixUnit ? kMaxMatrixRows : kMaxTileRows;

class Run {
 public:
  Run(const LinearCall& call, const Division& division)
      : call_(call), w_(*call.weight), division_(division), tiles_(tiles_for(w_, call.input.shape.form)) {
    const PreparedShape& shape = call.input.shape;
    block_columns_ = block_columns(shape.form) * blocks_per_tile();
    num_blocks_ = divided(w_.padded_columns, block_columns_);
    per_channel_ = w_.num_groups == 1;
    is_coded_ = w_.is_coded() && shape.group_size == 0;
    group_size_ = shape.group_size != 0 ? shape.group_size : !per_channel_ ? w_.group_size : is_coded_ ? kCodedColumns : block_columns_;
    if (!division.is_tall()) return;
    block_columns_ = std::min(block_columns_, tall_columns());
    num_blocks_ = divided(w_.padded_columns, block_columns_);
  }

  // goes_on: the thread's next item is index + 1.
  void item(int64_t index, int thread, bool goes_on) const {
    const Division::Item item = division_.item(index, goes_on);
    if (call_.gated_sums != nullptr) gated(item, call_.gated_sums + size_t(thread) * kGatedSumFloats);
    else run(item, {call_.out + offset(item), size_t(call_.out_stride)});
    if (division_.is_matrix()) release_matrix_unit();
  }

  // Computes all rows of one panel; the rows must fit a tile.
  void panel(int panel, int next) const {
    sum(0, call_.input.rows, panel, 1, call_.out, size_t(call_.out_stride), [&](TileArgs& t, int block) {
      t.panel_end = w_.panel(panel + 1);
      t.ahead = w_.panel(next) + block_start(block);
      t.ahead_step = kLine;
      t.ahead_end = w_.panel(next) + block_start(block + 1);
    });
    if (division_.is_matrix()) release_matrix_unit();
  }

 private:
  // The blocks of the input that a tile sums up before it writes; otherwise wide vectors would load and store their sums too often.
  int blocks_per_tile() const {
    constexpr int kMost = kWidth == 16 ? 4 : 1;  // so many blocks of all rows and of a tile's panels stay in the second level
    const int blocks = call_.input.shape.num_blocks();
    if (kWidth < 16 && call_.direct != nullptr) return blocks;
    if (call_.direct == nullptr && (w_.is_quantized() || division_.is_matrix())) return 1;
    if (division_.is_in_order()) return blocks;
    if (division_.streams()) return kWidth < 16 ? 1 : blocks_ahead();
    const int parts = divided(blocks, kMost);
    return divided(blocks, parts);
  }
  int blocks_ahead() const {
    const size_t bytes = size_t(block_columns(call_.input.shape.form) * division_.panels_per_tile()) * column_panel_bytes(w_.layout);
    return std::max(1, int(kAheadBytes / bytes));
  }

  // The place of an item's sums: those of its first row and panel, and the floats from row to row.
  struct Sums {
    float* first;
    size_t stride;
  };
  size_t offset(const Division::Item& item) const {
    return size_t(division_.tile_start(item.first_tile)) * size_t(call_.out_stride) + size_t(item.first_panel) * kPanel;
  }

  // Computes as many of the item's tiles at a time as there is room for their sums.
  void gated(const Division::Item& item, float* sums) const {
    const int width = (item.end_panel - item.first_panel) * kPanel;
    const int most = std::max(1, int(kGatedSumFloats) / (2 * width * division_.rows_per_tile()));
    for (Division::Item part = item; part.first_tile < item.end_tile; part.first_tile = part.end_tile) {
      part.end_tile = std::min(part.first_tile + most, item.end_tile);
      part.next_panel = part.end_tile < item.end_tile ? item.first_panel : item.next_panel;
      gated_tiles(part, width, sums);
    }
  }

  // Computes both halves of the item's panels, and their result while the sums are in the caches.
  void gated_tiles(const Division::Item& item, int width, float* sums) const {
    Division::Item half = item;
    half.next_panel = item.first_panel + division_.panels();
    run(half, {sums, 2 * size_t(width)});
    half.first_panel += division_.panels();
    half.end_panel += division_.panels();
    half.next_panel = item.next_panel;
    run(half, {sums + width, 2 * size_t(width)});
    const int column = item.first_panel * kPanel;
    with_activation(call_.activation, [&](auto f) {
      alignas(64) float results[kMaxActivationGroup];
      for (int row = division_.tile_start(item.first_tile); row < division_.tile_start(item.end_tile); ++row) {
        float* const out = call_.next != nullptr ? results : call_.out + size_t(row) * size_t(call_.out_stride) + column;
        map(out, width, [&](Floats g, Floats up) { return f(g) * up; }, sums, sums + width);
        if (call_.next != nullptr) prepare_columns(*call_.next, results, row, column, width);
        sums += 2 * width;
      }
    });
  }

  void run(const Division::Item& item, const Sums& sums) const {
    const int step = division_.panels_per_tile();
    if (division_.streams()) {
      for (int panel = item.first_panel; panel < item.end_panel; panel += step) {
        for (int block = 0; block < num_blocks_; ++block) panels(item, sums, panel, step, block);
      }
      return;
    }
    for (int block = 0; block < num_blocks_; ++block) {
      if (division_.is_tall()) {
        tall_panels(item, sums, block);
        continue;
      }
      for (int panel = item.first_panel; panel < item.end_panel; panel += step) panels(item, sums, panel, step, block);
    }
  }

  // Computes all tiles of the item's rows over up to `most` panels from `panel` on, for one block of columns.
  void panels(const Division::Item& item, const Sums& sums, int panel, int most, int block) const {
    int count = std::min(most, item.end_panel - panel);
    while (count > 0) {
      const int width = count >= 4 ? 4 : count >= 2 ? 2 : 1;
      if (is_whole(panel, width)) in_place(item, sums, panel, width, block);
      else if (block == 0) aside(item, panel, width);
      panel += width;
      count -= width;
    }
  }

  // Whether sums can be accumulated in the output.
  bool is_whole(int panel, int width) const { return (panel + width) * kPanel <= w_.rows && !(call_.accumulate && call_.activation != 0); }

  // The same for all panels of the item, each unpacked once. Panels that do not fill a block go through ordinary tiles.
  void tall_panels(const Division::Item& item, const Sums& sums, int block) const {
    TallBlock unpacked;
    int panel = item.first_panel;
    for (; panel + kTallPanels <= item.end_panel && is_whole(panel, kTallPanels); panel += kTallPanels) {
      tall_panel(item, sums, panel, block, unpacked);
    }
    for (; panel < item.end_panel; ++panel) panels(item, sums, panel, 1, block);
  }

  // A tile takes about a microsecond, so the values that tiles share are computed once.
  void tall_panel(const Division::Item& item, const Sums& sums, int panel, int block, TallBlock& unpacked) const {
    TileArgs t = sum_arguments(item, sums, panel, block);
    unpack_block(w_.layout, division_.rows_of(item), t, unpacked);
    TallAsking asking(block_at(read_after(item, panel, kTallPanels, block)), block_start(block + 1) - block_start(block), w_.panel_bytes,
                      item.end_tile - item.first_tile);
    for_tiles(item, panel, kTallPanels, block, t, [&](int rows, int behind) {
      ask_for_sums(t, rows, behind, kTallPanels);
      run_tall(w_.layout, rows, t, unpacked, asking.next());
    });
  }

  void in_place(const Division::Item& item, const Sums& sums, int panel, int width, int block) const {
    if (is_coded_ && item.end_tile - item.first_tile > 1) return decoded(item, sums, panel, width, block);
    TileArgs t = sum_arguments(item, sums, panel, block);
    const size_t share = look_ahead(item, panel, width, block, t, step_bytes());
    for_tiles(item, panel, width, block, t, [&](int rows, int behind) {
      ask_for_sums(t, rows, behind, width);
      run_tile(rows, width, t);
      move_ahead(t, share);
    });
  }

  // The same with several tiles over codes that stand for floats: they are decoded once.
  void decoded(const Division::Item& item, const Sums& sums, int panel, int width, int block) const {
    TileArgs t = sum_arguments(item, sums, panel, block);
    const size_t share = look_ahead(item, panel, width, block, t, kDecodedStep * column_panel_bytes(w_.layout));
    DecodedBlock values;
    decode_block(w_.layout, width, t, values);
    for_tiles(item, panel, width, block, t, [&](int rows, int behind) {
      ask_for_sums(t, rows, behind, width);
      kDecodedTiles.tiles[rows - 1][width / 2](t);
      move_ahead(t, share);
    });
  }

  // Prefetches the lines of the next tile's sums, for which it would otherwise wait. Always inlined, like the prefetches in tile.h.
  [[gnu::always_inline]] void ask_for_sums(const TileArgs& t, int rows, int behind, int width) const {
    if (call_.gated_sums != nullptr) return;
    const float* row = t.c + size_t(rows) * t.ldc;
    for (int m = 0; m < behind; ++m, row += t.ldc) {
      for (int p = 0; p < width; ++p) __builtin_prefetch(row + p * kPanel, 1, 2);
    }
  }

  // The arguments of an item's first tile.
  TileArgs sum_arguments(const Division::Item& item, const Sums& sums, int panel, int block) const {
    TileArgs t = arguments(division_.tile_start(item.first_tile), panel, block);
    t.c = sums.first + size_t(panel - item.first_panel) * kPanel;
    t.ldc = sums.stride;
    t.add = block > 0 || call_.accumulate;
    return t;
  }

  // Calls compute(rows, rows of the next tile) for each tile of the item's rows, with `t` at its first row.
  template <class Compute>
  void for_tiles(const Division::Item& item, int panel, int width, int block, TileArgs& t, Compute&& compute) const {
    int row = division_.tile_start(item.first_tile), next = division_.tile_start(item.first_tile + 1);
    for (int tile = item.first_tile; tile < item.end_tile; ++tile) {
      const int behind = tile + 1 < item.end_tile ? division_.tile_start(tile + 2) : next;
      compute(next - row, behind - next);
      if (block == num_blocks_ - 1) finish(t.c, t.ldc, next - row, panel * kPanel, width * kPanel);
      skip_rows(t, size_t(next - row));
      row = next;
      next = behind;
    }
  }

  void skip_rows(TileArgs& t, size_t rows) const {
    t.a += rows * kRowBytes;
    t.c += rows * t.ldc;
    if (call_.input.shape.group_size == 0) return;
    t.scale += rows;
    t.sum += rows;
    t.scaled_sum += rows;
    t.neighbours += rows;
    t.sub_sum += rows * size_t(w_.num_sub_groups());
  }

  // Computes a panel that extends past the last row of the weight, or sums of activated values.
  void aside(const Division::Item& item, int panel, int width) const {
    for (int tile = item.first_tile; tile < item.end_tile; ++tile) aside(item, tile, panel, width);
  }

  void aside(const Division::Item& item, int tile, int panel, int width) const {
    const int row = division_.tile_start(tile), rows = division_.tile_start(tile + 1) - row;
    constexpr size_t kStride = kMaxTilePanels * kPanel;
    float c[kMostTileRows * kStride];
    sum(row, rows, panel, width, c, kStride, [&](TileArgs& t, int block) {
      const size_t share = look_ahead(item, panel, width, block, t, step_bytes());
      move_ahead(t, size_t(tile - item.first_tile) * share);
    });
    const int first = panel * kPanel, live = std::min(width * kPanel, w_.rows - first);
    finish(c, kStride, rows, first, live);
    for (int m = 0; m < rows; ++m) {
      float* out = call_.out + size_t(row + m) * size_t(call_.out_stride) + first;
      for (int n = 0; n < live; ++n) out[n] = (call_.accumulate ? out[n] : 0.0f) + c[size_t(m) * kStride + size_t(n)];
    }
  }

  // Computes one tile over all columns. look(arguments, block) sets the prefetches.
  template <class Look>
  void sum(int row, int rows, int panel, int width, float* c, size_t ldc, Look&& look) const {
    for (int block = 0; block < num_blocks_; ++block) {
      TileArgs t = arguments(row, panel, block);
      look(t, block);
      t.c = c;
      t.ldc = ldc;
      t.add = block > 0;
      run_tile(rows, width, t);
    }
  }

  // The data that is read after a block of columns of some panels; after an item's last block, it is the next item's.
  struct After {
    int panel, block;
  };
  After read_after(const Division::Item& item, int panel, int width, int block) const {
    const bool last_block = block + 1 == num_blocks_, last_panel = panel + width >= item.end_panel;
    const bool next_block = division_.streams() ? !last_block : last_panel && !last_block;
    const int to_block = next_block ? block + 1 : division_.streams() || last_panel ? 0 : block;
    const int behind = last_panel ? item.next_panel : panel + width;
    const int to_panel = !next_block ? behind : division_.streams() ? panel : item.first_panel;
    return {to_panel, to_block};
  }
  // The bytes of a panel before a block of columns; a header of the whole panel counts as if it were spread over them.
  size_t block_start(int block) const {
    return w_.panel_bytes * size_t(std::min(block * block_columns_, w_.padded_columns)) / size_t(w_.padded_columns);
  }
  const uint8_t* block_at(After at) const { return w_.panel(at.panel) + block_start(at.block); }

  // Sets where the first of an item's tiles prefetches weights. Returns the distance to the next tile's place: all prefetch equal shares.
  // `step`: the bytes of a panel that a step reads.
  size_t look_ahead(const Division::Item& item, int panel, int width, int block, TileArgs& t, size_t step) const {
    const size_t tiles = size_t(item.end_tile - item.first_tile);
    t.panel_end = w_.panel(panel + 1);
    t.level = division_.level();
    if (division_.is_in_order()) return look_straight_on(t);
    const After after = read_after(item, panel, width, block);
    if (after.panel == Division::kNoPanel) return look_nowhere(t);
    const size_t bytes = block_start(after.block + 1) - block_start(after.block);
    t.ahead = block_at(after);
    t.ahead_step = (step + tiles - 1) / tiles;
    t.ahead_end = t.ahead + bytes;
    t.ahead_jump = w_.panel_bytes - bytes;
    return (bytes * size_t(width) + tiles - 1) / tiles;
  }

  size_t look_nowhere(TileArgs& t) const {
    t.ahead = t.b;
    t.ahead_end = kNoEnd;
    return 0;
  }

  // The same for one tile over consecutive panels.
  size_t look_straight_on(TileArgs& t) const {
    t.ahead = t.b + (t.level == Asked::kBoth ? kFarAheadBytes : kNearAheadBytes);
    t.ahead_step = kLine;
    t.ahead_end = kNoEnd;
    return 0;
  }

  // The bytes of a panel that a step reads: a line, or the codes that are unpacked to one if the input is f32.
  size_t step_bytes() const {
    const bool unpacks = call_.input.shape.group_size == 0 && (w_.layout == APPL_INT5 || w_.layout == APPL_INT6);
    return unpacks ? kLine * column_panel_bytes(w_.layout) / column_panel_bytes(APPL_INT8) : kLine;
  }

  void move_ahead(TileArgs& t, size_t bytes) const {
    t.ahead += bytes;
    for (; t.ahead >= t.ahead_end; t.ahead_end += w_.panel_bytes) t.ahead += t.ahead_jump;
  }

  void run_tile(int rows, int width, const TileArgs& t) const {
    if (division_.is_matrix()) run_matrix(w_.layout, rows, width, t);
    else tiles_.tiles[rows - 1][width / 2](t);
  }

  // The arguments for the input from `row` on and a block of columns of some panels.
  TileArgs arguments(int row, int panel, int block) const {
    TileArgs t{};
    t.a = call_.direct != nullptr ? reinterpret_cast<const uint8_t*>(call_.direct + block * block_columns_)
                                  : input(row, block * block_columns_);
    t.panel_bytes = w_.panel_bytes;
    t.columns = std::min(block_columns_, w_.padded_columns - block * block_columns_);
    const size_t first_column = size_t(block) * size_t(block_columns_);
    if (w_.is_quantized()) {
      locate_groups(t, w_.panel(panel), first_column, row);
    } else {
      t.b = w_.panel(panel) + first_column * column_panel_bytes(w_.layout);
      if (call_.direct == nullptr) cut_into_segments(t);
    }
    return t;
  }

  // Cuts the columns into segments: those of the weight are consecutive, those of the input are in blocks.
  void cut_into_segments(TileArgs& t) const {
    const int most = block_columns(call_.input.shape.form);
    t.num_more = (t.columns - 1) / most;
    t.last_columns = t.columns - t.num_more * most;
    t.columns = std::min(t.columns, most);
    t.input_jump = size_t(call_.input.block_rows - 1) * kRowBytes;
  }

  const uint8_t* input(int row, int column) const {
    const Form form = call_.input.shape.form;
    const int columns = block_columns(form);
    return call_.input.block(column / columns) + size_t(row) * kRowBytes + size_t(column % columns * column_bytes(form));
  }

  void locate_groups(TileArgs& t, const uint8_t* panel, size_t first_column, int row) const {
    const size_t first_group = first_column / size_t(group_size_);
    const size_t data_bytes = size_t(group_size_) * column_panel_bytes(w_.layout);
    t.group_size = group_size_;
    t.group_stride = per_channel_ ? data_bytes : w_.block_bytes;
    t.header_stride = per_channel_ ? 0 : w_.block_bytes;
    t.header = panel + first_group * t.header_stride;
    t.b = panel + w_.header_bytes + first_group * t.group_stride;
    t.scale_type = w_.scale_type;
    t.has_offset = w_.has_offset;
    t.zero_point = float(w_.is_coded() ? book_zero_point(w_.layout) : w_.zero_point);
    t.sub_group_size = w_.sub_group_size;
    t.sub_scale_at = w_.sub_scale_at();
    t.sub_offset_at = w_.sub_offset_at();
    t.header_bytes = w_.header_bytes;
    if (call_.input.shape.group_size == 0) return;
    const size_t side = first_group * call_.input.side_stride + size_t(row);
    t.side_stride = call_.input.side_stride;
    t.scale = call_.input.scale + side;
    t.sum = call_.input.sum + side;
    t.scaled_sum = call_.input.scaled_sum + side;
    t.neighbours = call_.input.neighbours + side;
    t.sub_sum = call_.input.sub_sum + side * size_t(w_.num_sub_groups());
  }

  void finish(float* c, size_t ldc, int rows, int first, int count) const {
    if (call_.gated_sums != nullptr || (call_.bias == nullptr && call_.activation == APPL_ACTIVATION_NONE)) return;
    with_activation(call_.activation, [&](auto f) {
      for (int m = 0; m < rows; ++m, c += ldc) {
        if (call_.bias == nullptr) map(c, count, f, c);
        else map(c, count, [&](Floats x, Floats b) { return f(x + b); }, c, call_.bias + first);
      }
    });
  }

  const LinearCall& call_;
  const appl_weight& w_;
  const Division& division_;
  const TileTable& tiles_;
  int block_columns_, num_blocks_, group_size_;
  bool per_channel_;
  bool is_coded_;  // codes that stand for floats are multiplied with floats
};

}  // namespace

PreparedShape input_shape(const appl_weight& w, bool quantize_activations) {
  const bool is_matrix = has_matrix_form(w, quantize_activations);
  if (w.layout == APPL_BF16) return {is_matrix ? Form::kBf16 : kBf16Form, w.columns, 0};
  if (!w.has_integers() || !quantize_activations) return {Form::kF32, w.columns, 0};
  const Form form = is_matrix ? Form::kInt8 : w.layout == APPL_INT8 ? kInt8Form : w.layout == APPL_IQ4_NL ? kIq4Form : kInt4Form;
  return {form, w.columns, std::min(w.group_size, kMaxActivationGroup), w.sub_group_size};
}

bool has_halves(const appl_weight& w) { return w.rows % (2 * kPanel) == 0; }

int min_rows_for_next(const appl_weight& w, const PreparedShape& input, const PreparedShape& next, int threads) {
  constexpr int kNever = std::numeric_limits<int>::max();
  constexpr int kMinWideRows = 128;  // fewer are read from the caches anyway, and narrow items balance the threads better
  const int panels = gated_panels(next);
  const bool is_wide = panels > kGatedPanels;
  const int group = std::max(1, next.group_size);
  const bool has_whole_groups = kMaxActivationGroup % group == 0 && next.columns % group == 0;
  const bool is_shared_out = w.num_panels / 2 >= 2 * threads * panels;
  if (!has_whole_groups || !is_shared_out) return kNever;
  if (is_wide && may_be_tall(w, input)) return kNever;  // a block would be unpacked for too few rows
  return is_wide ? kMinWideRows : kMinGatedRows;
}

bool reads_in_place(const appl_weight& w, const PreparedShape& shape, int rows) {
  return rows == 1 && shape.form == Form::kF32 && w.padded_columns == w.columns;
}

void run_linear(appl_pool& pool, const LinearCall& call) {
  if (call.direct == nullptr && call.input.rows == 0) return;
  const Division division(call, pool.num_threads());
  const Run run(call, division);
  const int64_t work = int64_t(division.rows()) * call.weight->columns * call.weight->rows;
  parallel_shares(pool, division.num_items(), work / division.num_items(),
                  [&](int64_t index, int thread, bool goes_on) { run.item(index, thread, goes_on); });
}

void run_linears(appl_pool& pool, const std::vector<LinearCall>& calls) {
  const size_t count = calls.size();
  std::vector<Division> divisions;
  std::vector<Run> runs;
  std::vector<int64_t> ends;  // of their items
  divisions.reserve(count);
  runs.reserve(count);
  ends.reserve(count);
  int64_t items = 0, work = 0;
  for (const LinearCall& call : calls) {
    const Division& division = divisions.emplace_back(call, pool.num_threads());
    runs.emplace_back(call, division);
    ends.push_back(items += division.num_items());
    work += int64_t(division.rows()) * call.weight->columns * call.weight->rows;
  }
  if (items == 0) return;
  parallel_shares(pool, items, work / items, [&](int64_t index, int thread, bool goes_on) {
    const size_t at = size_t(std::upper_bound(ends.begin(), ends.end(), index) - ends.begin());
    const int64_t first = at == 0 ? 0 : ends[at - 1];
    runs[at].item(index - first, thread, goes_on && index + 1 < ends[at]);
  });
}

void run_panel(const appl_weight& weight, const Prepared& input, int panel, int next, float* sums) {
  const LinearCall call{&weight, input, nullptr, sums, kPanel, nullptr, APPL_ACTIVATION_NONE, false};
  const Division division(call, 1);
  Run(call, division).panel(panel, next);
}

}  // namespace appl
