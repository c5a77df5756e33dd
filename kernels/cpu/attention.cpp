#include "attention.h"

#include <algorithm>
#include <limits>

#include "activation.h"
#include "attention_codes.h"
#include "attention_panels.h"
#include "attention_parts.h"
#include "attention_scratch.h"
#include "attention_state.h"
#include "caches.h"
#include "memory.h"
#include "row_softmax.h"
#include "tile.h"

namespace appl {
namespace {

// A part goes over the keys in chunks, keeping each row's maximum, sum and weighted values (online softmax), and starts again with each
// segment of chunks; the segments' results are folded in order. The bounds of chunks and segments depend only on positions in the
// sequence, not on the batch, the chunks of its prompt or shared reading, so a row gets the same bits in every batch.
constexpr int kRows = kAttentionRows;
constexpr int kLeastAhead = 4;  // blocks that are prefetched before the first ones are read
constexpr int kManyRows = 16;   // from so many rows on a part is compute-bound, and its queries and output are not in the caches

// The floats that a row carries from one reading to the next: values, maximum and sum.
size_t carried_floats(int width) { return size_t(width) + kPanel; }

class Attention {
 public:
  using Turn = AttentionParts::Turn;
  using Cursor = AttentionParts::Cursor;

  Attention(const appl_attention& op, const KvLayer& layer, const appl_step& step, const AttentionParts& parts, float* carried)
      : op_(op), g_(layer.geometry), layer_(layer), step_(step), parts_(parts), carried_(carried),
        group_(op.num_heads / layer.geometry.num_kv_heads), form_(form_of(g_.layout)), tiles_(tiles_of(g_.layout)),
        unit_root_(root_of_unit(g_.layout)), scale_((op.soft_cap > 0 ? op.scale : op.scale * kLog2E) * unit_root_),
        softmax_(op, g_, form_) {}

  // Computes an item's results. Returns claim(), which it calls early enough to prefetch the next turn's keys.
  template <class Claim>
  Turn run(const Turn& now, Scratch& scratch, Claim&& claim) const {
    const Part& whole = now.part;
    Turn next{};
    load_queries(whole, scratch);
    const bool goes_on = goes_on_behind_segment(whole);
    if (goes_on) load_carried(whole, scratch.total);
    const int first = parts_.segment_of(whole.first_block), last = parts_.segment_of(whole.end_block - 1);
    for (int i = first; i <= last; ++i) {
      const auto following = [&] {
        if (i < last) return parts_.segment(whole, i + 1);
        next = claim();
        return parts_.segment(next.part, parts_.segment_of(next.part.first_block));
      };
      const bool is_total = i == first && !goes_on;  // nothing to fold it into
      compute(parts_.segment(whole, i), scratch, is_total ? scratch.total : scratch.segment, following, i == last);
      if (is_total) continue;
      fold(scratch.total, scratch.segment, whole.all_rows(), g_.value_width);
    }
    finish(whole, scratch.total);
    return next;
  }

  // Computes one segment's results, which `join` folds in order. A segment without keys leaves the maximum at minus infinity.
  template <class Claim>
  Turn run_segment(const Turn& now, Scratch& scratch, float* partials, Claim&& claim) const {
    const Part& part = now.part;
    const State state = partial(partials, now.index);
    if (part.first_block >= part.end_block) {
      clear(state, part.all_rows());
      return claim();
    }
    Turn next{};
    const int64_t item = now.index / parts_.splits();
    if (scratch.item != item) load_queries(part, scratch);
    scratch.item = item;
    compute(part, scratch, state, [&] { return (next = claim()).part; }, false);
    return next;
  }

  // Folds the segments of one of an item's heads.
  void join(int64_t index, int head, float* partials, const State& total, Cursor& at) const {
    Part part = parts_.item(index, at);
    if (head >= part.heads) return;
    part.kv_head += head;
    part.heads = 1;
    if (goes_on_behind_segment(part)) load_carried(part, total);
    else clear(total, part.rows);
    for (int i = 0; i < parts_.splits(); ++i) {
      fold(total, rows_from(partial(partials, index * parts_.splits() + i), head * part.rows), part.rows, g_.value_width);
    }
    finish(part, total);
  }

 private:
  // Of queries and probabilities, as tiles read them.
  static Form form_of(appl_layout layout) { return layout == APPL_BF16 ? kBf16Form : layout == APPL_INT8 ? Form::kInt16 : Form::kF32; }
  static const TileTable& tiles_of(appl_layout layout) {
    switch (layout) {
      case APPL_F32: return kF32Tiles;
      case APPL_F16: return kF16Tiles;
      case APPL_INT8: return kInt8CodeTiles;
      case APPL_F8: return kE4m3CodeTiles;
      case APPL_E5M2: return kE5m2CodeTiles;
      default: return kBf16Form == Form::kF32 ? kBf16Tiles : kBf16DotTiles;
    }
  }

  State partial(float* partials, int64_t index) const {
    return state_at(partials + size_t(index) * state_floats(parts_.rows(), g_.value_width), parts_.rows(), g_.value_width);
  }
  State rows_from(const State& state, int row) const {
    return {state.maximum + row, state.sum + row, state.values + size_t(row) * size_t(g_.value_width)};
  }

  bool goes_on(const Part& part) const {
    return part.reading->first_key > 0 && part.first_block * g_.block_size == part.reading->first_key;
  }
  bool is_segment_start(int block) const { return block == parts_.segment_start(block); }
  bool goes_on_behind_segment(const Part& whole) const { return goes_on(whole) && is_segment_start(whole.first_block); }

  // Loads the state of the part's rows before its first key, or leaves the values unset if there is none. Returns whether there is one.
  bool begin(const Part& part, const State& state) const {
    const bool is_known = goes_on(part) && !is_segment_start(part.first_block);
    if (is_known) load_carried(part, state);
    else clear(state, part.all_rows());
    return is_known;
  }

  static void clear(const State& state, int rows) {
    std::fill_n(state.maximum, rows, kMinusInfinity);
    std::fill_n(state.sum, rows, 0.0f);
  }

  // The carried floats of a row of the part; they are kept while its sequence's readings last.
  float* carried_row(const Part& part, int head, int row) const {
    const int sequence = part.reading->sequences[(part.first_row + row) / group_];
    return carried_ + (size_t(sequence) * size_t(op_.num_heads) + size_t(query_head(part, head, row))) * carried_floats(g_.value_width);
  }

  void load_carried(const Part& part, const State& state) const {
    for_rows(part, [&](int index, int head, int row) {
      const float* from = carried_row(part, head, row);
      std::copy_n(from, g_.value_width, state.values + size_t(index) * size_t(g_.value_width));
      state.maximum[index] = from[g_.value_width];
      state.sum[index] = from[g_.value_width + 1];
    });
  }

  void hand_on(const Part& part, const State& state) const {
    for_rows(part, [&](int index, int head, int row) {
      float* to = carried_row(part, head, row);
      std::copy_n(state.values + size_t(index) * size_t(g_.value_width), g_.value_width, to);
      to[g_.value_width] = state.maximum[index];
      to[g_.value_width + 1] = state.sum[index];
    });
  }

  using Blocks = AttentionParts::Blocks;

  // Computes all chunks of `part`. While it adds a chunk's values, it prefetches the keys that are read next: those of the next chunk, or
  // the first of following(), which is called at the last chunk. Then a part of many rows also prefetches the queries of that part, and
  // the rows of output that are written before it.
  template <class Following>
  void compute(const Part& part, Scratch& scratch, const State& state, Following&& following, bool is_written_next) const {
    bool adds = begin(part, state);
    const bool is_written = is_written_next && !part.reading->is_shared;
    for (Blocks chunk = parts_.chunk_at(part, part.first_block), after; chunk.count() > 0; chunk = after) {
      const int first = parts_.chunk_start(chunk.first), skip = chunk.first - first, count = chunk.end - first;
      for (const int least = std::min(kLeastAhead, chunk.count()); scratch.asked < least; ++scratch.asked) {
        ask_for(part, chunk.first + scratch.asked, 0, part.heads);
      }
      score(part, first, skip, count, scratch);
      if (g_.has_codes()) load_scales_of(part, first, skip, count, scratch);
      after = parts_.chunk_at(part, chunk.end);
      const bool is_last = after.count() == 0, asks = is_last && part.rows >= kManyRows;
      const Part next = is_last ? following() : part;
      const bool has_queries = asks && !is_same_rows(next, part);
      RowSoftmax::Seen seen[kRows];  // for all rows first: normalizing a row must wait for its largest score
      for_rows(part, [&](int index, int head, int row) {
        const RowSoftmax::Bias bias = bias_of(part, head, row);
        seen[index] =
            softmax_.mask(index, head, parts_.position(part, row), first, count, scratch, state, op_.slopes == nullptr ? nullptr : &bias);
      });
      for_rows(part, [&](int index, int head, int row) {
        softmax_.normalize(index, head, seen[index], count, scratch, state);
        if (has_queries && index < next.all_rows()) ask_for_row<0>(query_row(next, index / next.rows, index % next.rows), g_.key_dim);
        if (asks && is_written) ask_for_row<1>(out_row(part, head, row), g_.value_dim);
      });
      const Blocks later = is_last ? parts_.chunk_at(next, next.first_block) : after;
      if (g_.values_in_keys) copy_values(part, first, skip, count, scratch);
      scratch.asked = add_values(part, first, skip, count, next, later, scratch, state, adds);
      adds = true;
    }
  }

  static bool is_same_rows(const Part& a, const Part& b) {
    return a.reading == b.reading && a.kv_head == b.kv_head && a.first_row == b.first_row;
  }

  template <int IsWritten>
  static void ask_for_row(const float* row, int columns) {
    constexpr int kLineFloats = 16;
    for (int i = 0; i < columns; i += kLineFloats) __builtin_prefetch(row + i, IsWritten, 2);
  }

  void finish(const Part& part, const State& state) const {
    if (part.reading->is_shared) hand_on(part, state);
    else write(part, state);
  }

  // Writes the values, divided by the sums.
  void write(const Part& part, const State& state) const {
    for_rows(part, [&](int index, int head, int row) {
      const float* values = state.values + size_t(index) * size_t(g_.value_width);
      const float inverse = unit_root_ / (op_.sinks == nullptr ? state.sum[index] : sum_with_sink(part, head, row, state, index));
      map(out_row(part, head, row), g_.value_dim, [inverse](Floats v) { return v * inverse; }, values);
    });
  }

  // The sum of a row's probabilities relative to its maximum, with that of its head's sink. It is infinite if the sink takes all.
  float sum_with_sink(const Part& part, int head, int row, const State& state, int index) const {
    const float sink = op_.sinks[query_head(part, head, row)] * kLog2E;
    return state.sum[index] + std::exp2(sink - state.maximum[index]);
  }

  RowSoftmax::Bias bias_of(const Part& part, int head, int row) const {
    if (op_.slopes == nullptr) return {};
    const Reading& reading = *part.reading;
    const int sequence = reading.sequences[(part.first_row + row) / group_];  // of a shared reading, which has decodes only
    return {op_.slopes[query_head(part, head, row)], reading.is_shared ? step_.seq_lens[sequence] - 1 : parts_.position(part, row)};
  }

  // Calls body(index, head, row): the part's rows are ordered by KV head, and `row` counts within one.
  template <class Body>
  static void for_rows(const Part& part, Body&& body) {
    for (int head = 0, index = 0; head < part.heads; ++head) {
      for (int row = 0; row < part.rows; ++row, ++index) body(index, head, row);
    }
  }

  size_t token(const Part& part, int row) const {
    const Reading& reading = *part.reading;
    const int index = (part.first_row + row) / group_;
    return size_t(reading.is_shared ? step_.query_start[reading.sequences[index]] : step_.query_start[reading.sequences[0]] + index);
  }
  int query_head(const Part& part, int head, int row) const { return (part.kv_head + head) * group_ + (part.first_row + row) % group_; }
  const float* query_row(const Part& part, int head, int row) const {
    return op_.q.data + token(part, row) * size_t(op_.q.stride) + size_t(query_head(part, head, row)) * size_t(g_.key_dim);
  }
  float* out_row(const Part& part, int head, int row) const {
    return op_.out.data + token(part, row) * size_t(op_.out.stride) + size_t(query_head(part, head, row)) * size_t(g_.value_dim);
  }
  int block_id(const Part& part, int block) const {
    return step_.block_tables[size_t(part.reading->sequences[0]) * size_t(step_.block_table_stride) + size_t(block)];
  }
  // A head of the part in a block.
  const uint8_t* keys_of(const Part& part, int block, int head = 0) const {
    return layer_.keys + g_.key_offset(block_id(part, block), part.kv_head + head);
  }
  const uint8_t* values_of(const Part& part, int block, int head = 0) const {
    return layer_.values + g_.value_offset(block_id(part, block), part.kv_head + head);
  }
  // The values of a chunk that begins at first_block: those in the cache, or a copy of columns of the keys.
  const uint8_t* chunk_values(const Part& part, int first_block, int block, int head, const Scratch& scratch) const {
    return g_.values_in_keys ? scratch.values + size_t(block - first_block) * g_.value_head_bytes() : values_of(part, block, head);
  }
  // The bytes that are read after the keys of a block.
  const uint8_t* after_keys_of(const Part& part, int block, int head = 0) const {
    return g_.values_in_keys ? keys_of(part, block, head) : values_of(part, block, head);
  }

  // Loads the scales of a chunk of codes.
  void load_scales_of(const Part& part, int first_block, int skip, int count, const Scratch& scratch) const {
    for (int b = skip; b < count; ++b) {
      const int block = block_id(part, first_block + b);
      for (int head = 0; head < part.heads; ++head) {
        load_scales(layer_, block, part.kv_head + head, size_t(head * kChunk + b * g_.slots), scratch);
      }
    }
  }

  int query_blocks() const { return (g_.key_width + block_columns(form_) - 1) / block_columns(form_); }

  void copy_values(const Part& part, int first_block, int skip, int count, const Scratch& scratch) const {
    for (int b = skip; b < count; ++b) {
      values_of_keys(g_, keys_of(part, first_block + b), scratch.values + size_t(b) * g_.value_head_bytes());
    }
  }

  void load_queries(const Part& part, Scratch& scratch) const {
    const int columns = block_columns(form_);
    for_rows(part, [&](int index, int head, int row) {
      const float* q = query_row(part, head, row);
      if (has_sums()) return put_turned_query(g_, q, scale_, index, scratch);
      for (int block = 0; block < query_blocks(); ++block) {
        uint8_t* to = scratch.queries + (size_t(block) * kRows + size_t(index)) * kRowBytes;
        const int first = block * columns, count = std::min(columns, g_.key_dim - first);
        if (count < std::min(columns, g_.key_width - first)) std::memset(to, 0, kRowBytes);  // columns of no head
        const auto scaled = [this](Floats v) { return v * scale_; };
        if (form_ == Form::kF32) map(reinterpret_cast<float*>(to), count, scaled, q + first);
        else map(reinterpret_cast<uint16_t*>(to), count, scaled, q + first);
      }
    });
  }

  // Calls body(first row, rows) for tiles of nearly equal height.
  template <class Body>
  void for_tiles(int rows, Body&& body) const {
    const int tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
    for (int i = 0; i < tiles; ++i) body(rows * i / tiles, rows * (i + 1) / tiles - rows * i / tiles);
  }

  // Prefetches the first blocks of keys; blocks may be anywhere, so the hardware prefetcher cannot predict them.
  void ask_for(const Part& part, int block, int head, int heads) const {
    const uint8_t* at = keys_of(part, block, head);
    const bool of_second_level = asks_second_level();
    for (size_t i = 0; i < size_t(heads) * g_.key_head_bytes(); i += kLine) ask(at + i, of_second_level);
  }

  static bool streams(const Part& part) { return part.rows < kManyRows; }

  // Computes scores. The first `skip` blocks are before every window, and may belong to another sequence by now.
  void score(const Part& part, int first_block, int skip, int count, const Scratch& scratch) const {
    if (streams(part)) stream_scores(part, first_block, skip, count, scratch);
    else tile_scores(part, first_block, skip, count, scratch);
  }

  // The work of tiles on a block's keys or values: the panels of a head, and at most how many of them one tile takes.
  struct Stream {
    int panels, most;
    size_t head_bytes;
    const uint8_t* input;  // of all rows
    float* sums;
  };

  // Where tiles add values up, and whether there are sums already.
  struct Sums {
    float* values;
    bool adds;
  };

  // Few rows are memory-bound, and memory is fastest when it is read and prefetched in the order of addresses: so this goes block by
  // block, with as large a part of a block in one call as possible. It prefetches as many bytes from `asked` on.
  void stream_block(TileArgs& t, const Part& part, const Stream& stream, const uint8_t* block, const uint8_t* asked) const {
    for_tiles(part.rows, [&](int row, int rows) {
      const int most = std::min(stream.most, widest(rows, stream.panels));
      const bool is_head = most == stream.panels;  // a tile takes a whole head, and a call all heads; else only some panels of one head
      t.asked = row == 0 ? asked : block;
      t.set_bytes = is_head ? stream.head_bytes : size_t(most) * t.panel_bytes;
      t.set_input = is_head ? size_t(part.rows) * kRowBytes : 0;
      t.set_sums = is_head ? size_t(part.rows) * t.ldc : size_t(most) * kPanel;
      for (int head = 0; head < part.heads; head += is_head ? part.heads : 1) {
        const size_t first_row = size_t(head * part.rows + row);
        t.a = stream.input + first_row * kRowBytes;
        for (int panel = 0, width = 0; panel < stream.panels; panel += t.sets * width) {
          width = std::min(most, widest(rows, stream.panels - panel));
          t.sets = is_head ? part.heads : (stream.panels - panel) / width;
          t.b = block + size_t(head) * stream.head_bytes + size_t(panel) * t.panel_bytes;
          t.c = stream.sums + first_row * t.ldc + size_t(panel) * kPanel;
          tiles_.tiles[rows - 1][width / 2](t);
          t.asked += size_t(t.sets * width) * t.panel_bytes;
        }
      }
    });
  }

  // Prefetches keys some blocks ahead, and after the last keys the values that are added first.
  void stream_scores(const Part& part, int first_block, int skip, int count, const Scratch& scratch) const {
    const int columns = block_columns(form_), ahead = scratch.asked;
    TileArgs t = tile_args();
    t.ldc = kChunk;
    t.panel_bytes = g_.key_panel_bytes();
    for (int b = skip; b < count; ++b) {
      const uint8_t* keys = keys_of(part, first_block + b);
      if (g_.has_codes()) ask_for_scales(layer_, block_id(part, first_block + b), part.kv_head, part.heads);
      const uint8_t* later =
          b + ahead < count ? keys_of(part, first_block + b + ahead) : after_keys_of(part, first_block + b + ahead - count + skip);
      for (int block = 0; block < query_blocks(); ++block) {
        const size_t offset = size_t(block) * size_t(columns) * kPanel * g_.element_bytes();
        t.columns = std::min(columns, g_.key_width - block * columns);
        t.add = block > 0;
        const Stream stream{g_.slots / kPanel, 1, g_.key_head_bytes(), scratch.queries + size_t(block) * kRows * kRowBytes,
                            scratch.scores + b * g_.slots};
        stream_block(t, part, stream, keys + offset, later + offset);
      }
    }
  }

  // Prefetches values some blocks ahead, and after the last ones the keys that come next. Returns how many blocks of these.
  int stream_values(const Part& part, int first_block, int skip, int count, const Part& next, Blocks later, const Scratch& scratch,
                    const Sums& to) const {
    const int ahead = std::min(kLeastAhead, count - skip);
    TileArgs t = tile_args();
    t.ldc = size_t(g_.value_width);
    t.columns = g_.slots;
    t.add = to.adds;
    t.panel_bytes = g_.value_panel_bytes();
    Stream stream{g_.value_width / kPanel, kMaxTilePanels, g_.value_head_bytes(),
                  probabilities(scratch) + size_t(skip) * probability_bytes(), to.values};
    int asked = 0;
    for (int b = skip; b < count; ++b) {
      const uint8_t* const values = chunk_values(part, first_block, first_block + b, 0, scratch);
      const uint8_t* after = values;
      if (b + ahead < count) after = chunk_values(part, first_block, first_block + b + ahead, 0, scratch);
      else if (asked < later.count()) after = keys_of(next, later.first + asked++);
      stream_block(t, part, stream, values, after);
      t.add = true;
      stream.input += probability_bytes();
    }
    return asked;
  }

  // Takes as many panels at a time as a tile takes. Meanwhile it prefetches values, and keys some blocks ahead.
  void tile_scores(const Part& part, int first_block, int skip, int count, const Scratch& scratch) const {
    const int panels = g_.slots / kPanel, most = std::max(1, kMaxTilePanels / panels);
    TileArgs t = tile_args();
    t.ldc = kChunk;
    for (int b = skip; b < count; b += most) {
      for (int head = 0; head < part.heads; ++head) {
        Panels group;
        for (int i = b; i < std::min(b + most, count); ++i) {
          const int block = first_block + i;
          if (i + scratch.asked < count) ask_for(part, block + scratch.asked, head, 1);
          if (g_.has_codes()) ask_for_scales(layer_, block_id(part, block), part.kv_head + head, 1);
          group.add(keys_of(part, block, head), after_keys_of(part, block, head), panels, g_.key_panel_bytes());
        }
        score_panels(t, part, head, group, scratch, scratch.scores + b * g_.slots);
      }
    }
  }

  // Computes scores of all rows, from `scores` in row 0 on; only the first tile prefetches.
  void score_panels(TileArgs& t, const Part& part, int head, Panels& group, const Scratch& scratch, float* scores) const {
    const int columns = block_columns(form_);
    for (int block = 0; block < query_blocks(); ++block) {
      t.columns = std::min(columns, g_.key_width - block * columns);
      t.add = block > 0;
      for_tiles(part.rows, [&](int row, int rows) {
        const uint8_t** asked = row == 0 ? group.asked : group.keys;
        row += head * part.rows;
        t.a = scratch.queries + (size_t(block) * kRows + size_t(row)) * kRowBytes;
        for (int panel = 0, width = 0; panel < group.count; panel += width) {
          width = widest(rows, group.count - panel);
          t.panels = group.keys + panel;
          t.asked_panels = asked + panel;
          t.b = t.ahead = group.keys[panel];
          t.c = scores + size_t(row) * kChunk + size_t(panel) * kPanel;
          tiles_.tiles[rows - 1][width / 2](t);
        }
      });
      group.move(size_t(columns) * kPanel * g_.element_bytes());
    }
  }

  // The most panels that a tile of so many rows takes.
  static int widest(int rows, int panels) { return panels >= 4 && tile_fits(rows, 4) ? 4 : panels >= 2 && tile_fits(rows, 2) ? 2 : 1; }

  // The arguments that all tiles of a chunk share: clearing them for each tile would take as long as some steps.
  static TileArgs tile_args() {
    TileArgs t{};
    t.panel_end = t.ahead_end = kNoEnd;  // ask_for prefetches
    t.level = asks_second_level() ? Asked::kSecond : Asked::kFirst;
    return t;
  }

  // Adds to the earlier values if it `adds`, else overwrites them. Returns how many blocks of the keys that come next it has prefetched.
  int add_values(const Part& part, int first_block, int skip, int count, const Part& next, Blocks later, const Scratch& scratch,
                 const State& state, bool adds) const {
    const Sums to = has_sums() ? Sums{scratch.sums, false} : Sums{state.values, adds};
    int asked = 0;
    if (streams(part)) {
      asked = stream_values(part, first_block, skip, count, next, later, scratch, to);
    } else {
      tile_values(part, first_block, {first_block + skip, first_block + count}, next, later, scratch, to);
      if (later.count() > 0) asked = std::min((count - skip) * part.heads / next.heads, later.count());
    }
    for (int row = 0; has_sums() && row < part.all_rows(); ++row) add_sums(row, g_.value_width, scratch, state, adds);
    return asked;
  }

  // Whether tiles make sums of a chunk's values as int32; they are the chunk's alone, as their factors are.
  bool has_sums() const { return form_ == Form::kInt16; }

  // Takes all blocks in one call of a tile, which keeps its sums in registers.
  void tile_values(const Part& part, int first_block, Blocks now, const Part& next, Blocks later, const Scratch& scratch,
                   const Sums& to) const {
    const uint8_t *values[kChunk / kPanel], *blocks[kChunk / kPanel], *asked[kChunk / kPanel];
    const uint8_t* a = probabilities(scratch) + size_t(now.first - first_block) * probability_bytes();
    const int panels = g_.value_width / kPanel, count = now.count();
    TileArgs t = tile_args();
    t.panel_bytes = g_.value_panel_bytes();
    t.columns = t.last_columns = g_.slots;
    t.more = blocks + 1;
    t.num_more = count - 1;
    t.ldc = size_t(g_.value_width);
    t.add = to.adds;
    for (int head = 0; head < part.heads; ++head) {
      for (int b = 0; b < count; ++b) values[b] = chunk_values(part, first_block, now.first + b, head, scratch);
      for_tiles(part.rows, [&](int row, int rows) {
        const bool asks = row == 0 && later.count() > 0;
        t.asked_segments = asks ? asked : nullptr;
        row += head * part.rows;
        for (int panel = 0, width = 0; panel < panels; panel += width) {
          width = widest(rows, panels - panel);
          const size_t offset = size_t(panel) * g_.value_panel_bytes();
          for (int b = 0; b < count; ++b) blocks[b] = values[b] + offset;
          for (int b = 0; asks && b < count; ++b) asked[b] = key_at(next, later, b * part.heads + head) + offset;
          t.a = a + size_t(row) * kRowBytes;
          t.b = t.ahead = blocks[0];
          t.c = to.values + size_t(row) * size_t(g_.value_width) + size_t(panel) * kPanel;
          tiles_.tiles[rows - 1][width / 2](t);
        }
      });
    }
  }

  const uint8_t* probabilities(const Scratch& scratch) const {
    return form_ == Form::kF32 ? reinterpret_cast<const uint8_t*>(scratch.scores) : scratch.probabilities;
  }
  // For one block.
  size_t probability_bytes() const { return size_t(g_.slots) * (form_ == Form::kF32 ? sizeof(float) : sizeof(uint16_t)); }

  // The `index`-th head of some keys, in the order of addresses within a block; past the last block, a head of that block.
  const uint8_t* key_at(const Part& part, Blocks blocks, int index) const {
    return keys_of(part, std::min(blocks.first + index / part.heads, blocks.end - 1), index % part.heads);
  }

  const appl_attention& op_;
  const KvGeometry& g_;
  const KvLayer& layer_;
  const appl_step& step_;
  const AttentionParts& parts_;
  float* const carried_;  // [sequences][heads][carried_floats]
  const int group_;
  const Form form_;
  const TileTable& tiles_;
  const float unit_root_;
  const float scale_;
  const RowSoftmax softmax_;
};

}  // namespace

size_t attention_workspace_bytes(int num_threads, const ScratchShape& largest, int max_rows) {
  const int width = largest.value_width;
  const size_t partials = partials_floats(num_threads, width), carried = size_t(max_rows) * carried_floats(width);
  return size_t(num_threads) * largest.bytes() + partials * sizeof(float) + carried * sizeof(float);
}

void run_attention(appl_pool& pool, const appl_attention& op, const KvLayer& layer, const appl_step& step, const Cascade& cascade,
                   uint8_t* workspace) {
  const int threads = pool.num_threads(), width = layer.geometry.value_width;
  const ScratchShape shape = ScratchShape::of(layer.geometry);
  float* const partials = reinterpret_cast<float*>(workspace + size_t(threads) * shape.bytes());
  float* const carried = partials + partials_floats(threads, width);
  const auto scratch_of = [&](int thread) { return scratch_at(workspace + size_t(thread) * shape.bytes(), shape); };
  const auto run = [&](std::span<const Reading> readings) {
    const AttentionParts parts(op, layer.geometry, cascade.cuts(), readings, threads);
    const Attention attention(op, layer, step, parts, carried);
    Chunks turns(parts.num_parts(), 1);
    auto work = [&](int thread) {
      Scratch scratch = scratch_of(thread);
      AttentionParts::Cursor at;
      const auto claim = [&] {
        int64_t index, end;
        turns.next(index, end);
        return parts.turn(index, at);
      };
      for (auto turn = claim(); turn.index < parts.num_parts();) {
        turn = parts.splits() == 1 ? attention.run(turn, scratch, claim) : attention.run_segment(turn, scratch, partials, claim);
      }
    };
    pool.run(work);
    if (parts.splits() == 1) return;
    const int heads = layer.geometry.num_kv_heads;
    const auto join = [&](int64_t first, int64_t end, int thread) {
      AttentionParts::Cursor at;
      for (int64_t i = first; i < end; ++i) attention.join(i / heads, int(i % heads), partials, scratch_of(thread).total, at);
    };
    parallel_for(pool, parts.num_items() * heads, int64_t{parts.splits()} * parts.rows() * width / heads, join);
  };
  if (!sees_all(op)) return run(cascade.whole());  // the shared prefix may be outside some windows
  for (int level = 0; level < cascade.num_levels(); ++level) run(cascade.level(level));
}

}  // namespace appl
