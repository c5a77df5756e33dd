#include "attention.h"

#include <algorithm>
#include <limits>

#include "activation.h"
#include "attention_state.h"
#include "memory.h"
#include "softmax.h"
#include "tile.h"

namespace appl {
namespace {

// An item is up to kRows query rows of one sequence: tokens times the heads that share a KV head, of one KV head or, where these
// are few, of several, which lie side by side in each block. It goes over the keys in chunks of kChunk slots, keeping each row's
// maximum, sum and weighted values (online softmax), and begins anew with each segment of chunks; the segments' results are
// folded in order. Chunks and segments lie where the sequence has them, whatever else runs and however its prompt was cut, so a
// row gets the same bits with any neighbours.
constexpr int kRows = 48;
constexpr int kChunk = int(kRowBytes / sizeof(float));
constexpr int kSegmentChunks = 2, kMaxSegments = 32;  // at least so many chunks each, at most so many of a sequence
constexpr int kLeastAhead = 4;      // blocks whose keys have been asked for when the first ones are read
constexpr int kManyRows = 16;       // whose queries and output are not in the caches
constexpr int kValueBlocks = 4;     // added at a time, where an item has several KV heads
const uint8_t* const kNever = reinterpret_cast<const uint8_t*>(UINTPTR_MAX);  // end of panels: ask_for prefetches
constexpr float kLog2E = 1.44269504088896341f;  // scores are to base 2, whose exponential costs less
constexpr int kPartialsPerThread = 8;
constexpr int kItemsPerThread = 16;  // or more, where items have several KV heads

// A thread's memory: all rows but of values are kRowBytes apart, as the tiles want their input.
struct Scratch {
  uint8_t* queries;        // [blocks of width][kRows][kRowBytes], scaled
  float* scores;           // [kRows][kChunk]
  uint8_t* probabilities;  // the scores in the form that the value tiles read
  State segment, total;
  int asked = 0;  // blocks of the next chunk whose keys have been asked for
};

size_t query_bytes(int width) {
  return size_t(kRows) * kRowBytes * size_t((width + block_columns(Form::kF32) - 1) / block_columns(Form::kF32));
}
size_t scratch_bytes(int width) {
  return round_up(query_bytes(width) + 2 * kRows * kRowBytes + 2 * state_floats(kRows, width) * sizeof(float), 4096);
}
size_t partials_floats(int threads, int width) { return size_t(kPartialsPerThread * threads) * state_floats(kRows, width); }

struct Part {
  int sequence, kv_head, heads;  // KV heads from kv_head on
  int first_row, rows;           // of each: of the sequence's tokens times heads a group
  int first_block, end_block;    // of the sequence's block table
  int all_rows() const { return heads * rows; }
};

class Attention {
 public:
  Attention(const appl_attention& op, const KvLayer& layer, const appl_step& step, int threads)
      : op_(op), g_(layer.geometry), layer_(layer), step_(step), group_(op.num_heads / layer.geometry.num_kv_heads),
        form_(g_.layout == APPL_BF16 ? kBf16Form : Form::kF32),
        tiles_(g_.layout == APPL_F32 ? kF32Tiles : g_.layout == APPL_F16 ? kF16Tiles
               : form_ == Form::kF32 ? kBf16Tiles : kBf16DotTiles),
        scale_(op.soft_cap > 0 ? op.scale : op.scale * kLog2E), chunk_blocks_(kChunk / g_.slots) {
    const int most = divided(divided(g_.max_model_len, g_.block_size), chunk_blocks_);
    segment_blocks_ = chunk_blocks_ * std::max(kSegmentChunks, divided(most, kMaxSegments));
    const int64_t least_items = int64_t{kItemsPerThread} * threads;
    if (step.num_seqs < 2 * threads) {  // of more, items are never split
      divide(std::numeric_limits<int64_t>::max(), threads);
      if (splits_ > 1 && num_parts() >= least_items) return;
    }
    int64_t work = 0;
    for (int s = 0; s < step.num_seqs; ++s) work += work_of(s) * g_.num_kv_heads;
    divide(work / least_items, threads);
  }

  int64_t num_parts() const { return num_items_ * splits_; }
  int splits() const { return splits_; }
  int64_t num_items() const { return num_items_; }
  size_t partial_floats() const { return state_floats(rows_, g_.width); }
  State partial(float* partials, int64_t index) const {
    return state_at(partials + size_t(index) * partial_floats(), rows_, g_.width);
  }

  // A sequence and the index of its first item, for who asks for items in order.
  struct Cursor {
    int sequence = 0;
    int64_t first = 0;
  };
  Part item(int64_t index, Cursor& at) const {
    for (int64_t count; index >= at.first + (count = items_of(at.sequence)); ++at.sequence) at.first += count;
    const int s = at.sequence;
    index -= at.first;
    const int tiles = tiles_of(s);
    Part part{};
    part.sequence = s;
    part.heads = heads_of(s);
    part.kv_head = int(index) / tiles * part.heads;
    part.first_row = int(index) % tiles * kRows;
    part.rows = std::min(kRows, tokens_of(s) * group_ - part.first_row);
    const int first_key = op_.window > 0 ? std::max(0, position(part, 0) - op_.window + 1) : 0;
    part.first_block = first_key / g_.block_size;
    part.end_block = position(part, part.rows - 1) / g_.block_size + 1;
    return part;
  }

  // What a thread does next: an item, or one segment of it where they are split; nothing from num_parts() on.
  struct Turn {
    int64_t index;
    Part part;
  };
  Turn turn(int64_t index, Cursor& at) const {
    if (index >= num_parts()) return {index, Part{}};
    return {index, splits_ == 1 ? item(index, at) : segment(item(index / splits_, at), int(index % splits_))};
  }

  // The item's results, divided by the sums. Returns claim(), called in time to ask for the next turn's keys.
  template <class Claim>
  Turn run(const Turn& now, Scratch& scratch, Claim&& claim) const {
    const Part& whole = now.part;
    Turn next{};
    load_queries(whole, scratch);
    const int first = first_segment(whole), last = (whole.end_block - 1) / segment_blocks_;
    for (int i = first; i <= last; ++i) {
      const auto following = [&] {
        if (i < last) return segment(whole, i + 1);
        next = claim();
        return segment(next.part, first_segment(next.part));
      };
      compute(segment(whole, i), scratch, i == first ? scratch.total : scratch.segment, following, i == last);
      if (i == first) continue;
      for (int row = 0; row < whole.all_rows(); ++row) fold(scratch.total, scratch.segment, row, g_.width);
    }
    write(whole, scratch.total);
    return next;
  }

  // One segment's, which `join` folds in the same order. A segment without keys leaves the maximum at minus infinity.
  template <class Claim>
  Turn run_segment(const Turn& now, Scratch& scratch, float* partials, Claim&& claim) const {
    const Part& part = now.part;
    const State state = partial(partials, now.index);
    if (part.first_block >= part.end_block) {
      clear(part, state);
      return claim();
    }
    Turn next{};
    load_queries(part, scratch);
    compute(part, scratch, state, [&] { return (next = claim()).part; }, false);
    return next;
  }

  void join(int64_t index, float* partials, const State& total, Cursor& at) const {
    const Part whole = item(index, at);
    clear(whole, total);
    for (int i = 0; i < splits_; ++i) {
      const State state = partial(partials, index * splits_ + i);
      for (int row = 0; row < whole.all_rows(); ++row) fold(total, state, row, g_.width);
    }
    write(whole, total);
  }

 private:
  int tokens_of(int s) const { return step_.query_start[s + 1] - step_.query_start[s]; }
  static int divided(int a, int b) { return (a + b - 1) / b; }
  int tiles_of(int s) const { return divided(tokens_of(s) * group_, kRows); }
  int64_t items_of(int s) const { return int64_t(tiles_of(s)) * (g_.num_kv_heads / heads_of(s)); }

  int64_t work_of(int s) const { return int64_t(tokens_of(s)) * step_.seq_lens[s]; }  // of a head

  // KV heads an item of the sequence.
  int heads_of(int s) const {
    const int most = kRows / std::max(1, tokens_of(s) * group_);
    int heads = int(std::min<int64_t>(most_work_ / std::max<int64_t>(1, work_of(s)), std::min(most, g_.num_kv_heads)));
    while (heads > 1 && g_.num_kv_heads % heads != 0) --heads;
    return std::max(1, heads);
  }

  // Into items of several heads up to so much work.
  void divide(int64_t most_work, int threads) {
    most_work_ = most_work;
    num_items_ = 0;
    rows_ = splits_ = 1;
    int segments = 1;
    for (int s = 0; s < step_.num_seqs; ++s) {
      num_items_ += items_of(s);
      rows_ = std::max(rows_, std::min(kRows, tokens_of(s) * group_) * heads_of(s));
      segments = std::max(segments, divided(divided(step_.seq_lens[s], g_.block_size), segment_blocks_));
    }
    const size_t floats = size_t(num_items_) * size_t(segments) * state_floats(rows_, g_.width);
    if (num_items_ < 2 * threads && floats <= partials_floats(threads, g_.width)) splits_ = segments;
  }

  int first_segment(const Part& item) const { return item.first_block / segment_blocks_; }

  Part segment(Part part, int index) const {
    part.first_block = std::max(part.first_block, index * segment_blocks_);
    part.end_block = std::min(part.end_block, (index + 1) * segment_blocks_);
    return part;
  }

  void clear(const Part& part, const State& state) const {
    std::fill_n(state.maximum, part.all_rows(), kMinusInfinity);
    std::fill_n(state.sum, part.all_rows(), 0.0f);
    std::fill_n(state.values, size_t(part.all_rows()) * size_t(g_.width), 0.0f);
  }

  // Blocks of a chunk.
  struct Blocks {
    int first, end;
    int count() const { return end - first; }
  };
  Blocks chunk_at(const Part& part, int block) const {
    return {block, std::min((block / chunk_blocks_ + 1) * chunk_blocks_, part.end_block)};
  }

  // All chunks of `part`. While it adds a chunk's values it asks for the keys that are read next: those of the next chunk, or of the
  // first of following(), which is called at the last. Then a part of many rows also asks for the queries of that, and for the rows of
  // output that are written before.
  template <class Following>
  void compute(const Part& part, Scratch& scratch, const State& state, Following&& following, bool is_written_next) const {
    clear(part, state);
    for (Blocks chunk = chunk_at(part, part.first_block), after; chunk.count() > 0; chunk = after) {
      const int first = chunk.first / chunk_blocks_ * chunk_blocks_, skip = chunk.first - first, count = chunk.end - first;
      for (; scratch.asked < std::min(kLeastAhead, chunk.count()); ++scratch.asked) ask_for(part, chunk.first + scratch.asked);
      score(part, first, skip, count, scratch);
      after = chunk_at(part, chunk.end);
      const bool is_last = after.count() == 0, asks = is_last && part.rows >= kManyRows;
      const Part next = is_last ? following() : part;
      const bool has_queries = asks && !is_same_rows(next, part);
      for_rows(part, [&](int index, int head, int row) {
        normalize(index, position(part, row), first, count, scratch, state);
        if (has_queries && index < next.all_rows()) ask_for_row<0>(query_row(next, index / next.rows, index % next.rows));
        if (asks && is_written_next) ask_for_row<1>(out_row(part, head, row));
      });
      const Blocks later = is_last ? chunk_at(next, next.first_block) : after;
      scratch.asked = add_values(part, first, skip, count, next, later, scratch, state);
    }
  }

  static bool is_same_rows(const Part& a, const Part& b) {
    return a.sequence == b.sequence && a.kv_head == b.kv_head && a.first_row == b.first_row;
  }

  template <int IsWritten>
  void ask_for_row(const float* row) const {
    constexpr int kLineFloats = 16;
    for (int i = 0; i < g_.head_dim; i += kLineFloats) __builtin_prefetch(row + i, IsWritten, 2);
  }

  void write(const Part& part, const State& state) const {
    for_rows(part, [&](int index, int head, int row) {
      const float* values = state.values + size_t(index) * size_t(g_.width);
      const float inverse = 1.0f / state.sum[index];
      map(out_row(part, head, row), g_.head_dim, [inverse](Floats v) { return v * inverse; }, values);
    });
  }

  // Calls body(index, head, row): the part's rows lie KV head by KV head, and `row` counts those of one.
  template <class Body>
  static void for_rows(const Part& part, Body&& body) {
    for (int head = 0, index = 0; head < part.heads; ++head) {
      for (int row = 0; row < part.rows; ++row, ++index) body(index, head, row);
    }
  }

  int position(const Part& part, int row) const {
    return step_.seq_lens[part.sequence] - tokens_of(part.sequence) + (part.first_row + row) / group_;
  }
  size_t token(const Part& part, int row) const {
    return size_t(step_.query_start[part.sequence] + (part.first_row + row) / group_);
  }
  size_t head_column(const Part& part, int head, int row) const {
    return size_t((part.kv_head + head) * group_ + (part.first_row + row) % group_) * size_t(g_.head_dim);
  }
  const float* query_row(const Part& part, int head, int row) const {
    return op_.q.data + token(part, row) * size_t(op_.q.stride) + head_column(part, head, row);
  }
  float* out_row(const Part& part, int head, int row) const {
    return op_.out.data + token(part, row) * size_t(op_.out.stride) + head_column(part, head, row);
  }
  int block_id(const Part& part, int block) const {
    return step_.block_tables[size_t(part.sequence) * size_t(step_.block_table_stride) + size_t(block)];
  }
  const uint8_t* head_of(const uint8_t* cache, const Part& part, int block, int head) const {
    return cache + g_.offset(block_id(part, block), part.kv_head + head);
  }
  int query_blocks() const { return (g_.width + block_columns(form_) - 1) / block_columns(form_); }

  void load_queries(const Part& part, Scratch& scratch) const {
    const int columns = block_columns(form_);
    for_rows(part, [&](int index, int head, int row) {
      const float* q = query_row(part, head, row);
      for (int block = 0; block < query_blocks(); ++block) {
        uint8_t* to = scratch.queries + (size_t(block) * kRows + size_t(index)) * kRowBytes;
        const int first = block * columns, count = std::min(columns, g_.head_dim - first);
        if (count < std::min(columns, g_.width - first)) std::memset(to, 0, kRowBytes);  // columns of no head
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

  // The first blocks of keys; blocks lie anywhere, so that the processor cannot foresee them.
  void ask_for(const Part& part, int block) const {
    constexpr size_t kLine = 64;
    const uint8_t* at = head_of(layer_.keys, part, block, 0);
    for (size_t i = 0; i < size_t(part.heads) * g_.head_bytes(); i += kLine) __builtin_prefetch(at + i, 0, 2);
  }

  // Panels of a block, or of two blocks of one panel each: then the distance between the blocks serves as that between panels.
  struct Panels {
    const uint8_t* first;
    size_t stride;
    Panels at(int panel) const { return {first + size_t(panel) * stride, stride}; }
  };

  template <class At>
  Panels panels_at(int block, int blocks, At&& at) const {
    return {at(block), blocks == 2 ? size_t(at(block + 1) - at(block)) : g_.key_panel_bytes()};
  }

  // How many groups of a chunk's values are added one after the other: all heads add a group before they go on to the next, so
  // that they read whole blocks, soon after these were asked for.
  int value_groups(const Part& part, int count) const { return part.heads == 1 ? 1 : divided(count, kValueBlocks); }

  // Blocks of one panel are scored in pairs. Meanwhile it asks for keys some blocks ahead, and for values: behind the last keys
  // for those that are added first, or for all where they are one group.
  // The first `skip` are before every window, and may be another sequence's by now.
  void score(const Part& part, int first_block, int skip, int count, Scratch& scratch) const {
    const int panels = g_.slots / kPanel;
    const int ahead = scratch.asked, groups = value_groups(part, count - skip);
    const auto later = [&](int b, int head) {
      if (b + ahead < count) return head_of(layer_.keys, part, first_block + b + ahead, head);
      return head_of(layer_.values, part, first_block + (groups > 1 ? b + ahead - count + skip : b), head);
    };
    TileArgs t = tile_args();
    t.ldc = kChunk;
    for (int b = skip, blocks = 1; b < count; b += blocks) {
      blocks = panels == 1 && b + 1 < count ? 2 : 1;
      for (int head = 0; head < part.heads; ++head) {
        const auto panels_of = [&](const uint8_t* cache) {
          return panels_at(b, blocks, [&](int i) { return head_of(cache, part, first_block + i, head); });
        };
        const Panels keys = panels_of(layer_.keys), next = panels_at(b, blocks, [&](int i) { return later(i, head); });
        const Panels values = groups > 1 ? next : panels_of(layer_.values);
        for_tiles(part.rows, [&](int row, int rows) {
          t.asks = row == 0;
          row += head * part.rows;
          for (int panel = 0, width = 0; panel < panels * blocks; panel += width) {
            width = panels * blocks - panel >= 2 && tile_fits(rows, 2) ? 2 : 1;
            t.c = scratch.scores + size_t(row) * kChunk + size_t(b * g_.slots + panel * kPanel);
            score_tile(t, scratch, row, rows, keys.at(panel), next.at(panel), values.at(panel), width);
          }
        });
      }
    }
  }

  // What is the same for all tiles of a chunk: clearing it for each would take as long as some steps.
  static TileArgs tile_args() {
    TileArgs t{};
    t.panel_end = kNever;
    return t;
  }

  // Lines of the keys that come later and of the values are asked for a few at a step: many at once would keep the loads waiting.
  void score_tile(TileArgs& t, const Scratch& scratch, int row, int rows, const Panels& keys, const Panels& next,
                  const Panels& values, int width) const {
    t.panel_bytes = keys.stride;
    t.asked_stride[0] = next.stride;
    t.asked_stride[1] = values.stride;
    const int columns = block_columns(form_);
    for (int block = 0; block < query_blocks(); ++block) {
      t.a = scratch.queries + (size_t(block) * kRows + size_t(row)) * kRowBytes;
      const size_t offset = size_t(block) * size_t(columns) * kPanel * g_.element_bytes();
      t.b = t.ahead = keys.first + offset;
      t.asked[0] = next.first + offset;
      t.asked[1] = values.first + offset;
      t.columns = std::min(columns, g_.width - block * columns);
      t.add = block > 0;
      tiles_.tiles[rows - 1][width / 2](t);
    }
  }

  // Column of the chunk that starts at first_block where the key at `position` is.
  int column(int position, int first_block) const {
    if (g_.slots == g_.block_size) return position - first_block * g_.slots;  // for each row: divisions would be felt
    return (position / g_.block_size - first_block) * g_.slots + position % g_.block_size;
  }

  // Turns a row's scores into probabilities relative to its new maximum, and rescales what it has summed so far. `last` is the
  // row's own position, the last that it sees.
  void normalize(int row, int last, int first_block, int count, Scratch& scratch, const State& state) const {
    float* s = scratch.scores + size_t(row) * kChunk;
    const int first = op_.window > 0 ? std::max(0, last - op_.window + 1) : 0;
    const int begin = first > 0 ? std::max(0, column(first, first_block)) : 0;
    const int all = count * g_.slots, end = std::min(all, column(last, first_block) + 1);
    if (begin >= end) return put_probabilities(row, scratch, [&](auto out) { put_zeros(0, all, out); });
    const int low = begin / kWidth * kWidth, high = int(round_up(size_t(end), kWidth));
    if (begin > low) keep_lanes(s + low, begin - low, kWidth);
    keep_lanes(s + high - kWidth, 0, end - (high - kWidth));
    mask_padding(s, count);
    const float maximum = std::max(state.maximum[row], cap_and_find_maximum(s, low, high));
    const bool is_first = state.maximum[row] == kMinusInfinity;  // nothing is summed yet
    const float correction = is_first ? 1.0f : std::exp2(state.maximum[row] - maximum);
    Floats sum{};
    put_probabilities(row, scratch, [&](auto out) {
      put_zeros(0, low, out);
      for_vectors(low, high, [&](int i) {
        const Floats p = out.exp2(load(s + i) - maximum);
        sum += p;
        out.put(i, p);
      });
      put_zeros(high, all, out);
    });
    state.sum[row] = state.sum[row] * correction + reduce_add(sum);
    state.maximum[row] = maximum;
    float* values = state.values + size_t(row) * size_t(g_.width);
    if (correction != 1.0f) map(values, g_.width, [correction](Floats v) { return v * correction; }, values);
  }

  void mask_padding(float* s, int count) const {
    if (g_.slots == g_.block_size) return;
    for (int b = 0; b < count; ++b) std::fill(s + b * g_.slots + g_.block_size, s + (b + 1) * g_.slots, kMinusInfinity);
  }

  float cap_and_find_maximum(float* s, int low, int high) const {
    const float cap = op_.soft_cap, inverse = cap > 0 ? 1.0f / cap : 0.0f;
    const auto capped = [&](Floats v) { return v > kMinusInfinity ? cap * kLog2E * vtanh(v * inverse) : v; };
    if (cap > 0) for_vectors(low, high, [&](int i) { store(s + i, capped(load(s + i))); });
    Floats maximum = splat(kMinusInfinity);
    for (int i = low; i < high; i += kWidth) maximum = vmax(load(s + i), maximum);
    return reduce_max(maximum);
  }

  // Calls body(out), where `out` takes a row's probabilities as tiles read them; f32 comes in place of the scores.
  template <class Body>
  void put_probabilities(int row, const Scratch& scratch, Body&& body) const {
    if (form_ == Form::kF32) return body(FloatProbabilities{scratch.scores + size_t(row) * kChunk});
    body(Bf16Probabilities{reinterpret_cast<uint16_t*>(scratch.probabilities + size_t(row) * kRowBytes)});
  }

  // Returns how many blocks it has asked for of the keys that come next.
  int add_values(const Part& part, int first_block, int skip, int count, const Part& next, Blocks later, const Scratch& scratch,
                 const State& state) const {
    const int groups = value_groups(part, count - skip);
    const auto group = [&](int i) {
      return Blocks{first_block + skip + (count - skip) * i / groups, first_block + skip + (count - skip) * (i + 1) / groups};
    };
    for (int i = 0; i + 1 < groups; ++i) {
      add_group(part, first_block, group(i), {layer_.values, part, group(i + 1)}, scratch, state);
    }
    const Blocks last = group(groups - 1);
    add_group(part, first_block, last, {layer_.keys, next, later}, scratch, state);
    return later.count() > 0 ? std::min(last.count() * part.heads / next.heads, later.count()) : 0;
  }

  // What is asked for while values are added.
  struct Asked {
    const uint8_t* cache;
    const Part& part;
    Blocks blocks;
  };

  void add_group(const Part& part, int first_block, Blocks group, const Asked& later, const Scratch& scratch,
                 const State& state) const {
    const uint8_t *values[kChunk / kPanel], *blocks[kChunk / kPanel], *asked[kChunk / kPanel];
    const uint8_t* a = form_ == Form::kF32 ? reinterpret_cast<const uint8_t*>(scratch.scores) : scratch.probabilities;
    const int panels = g_.width / kPanel, count = group.count();
    TileArgs t = tile_args();
    t.panel_bytes = g_.value_panel_bytes();
    t.columns = t.last_columns = g_.slots;
    t.more = blocks + 1;
    t.num_more = count - 1;
    t.ldc = size_t(g_.width);
    t.add = true;
    for (int head = 0; head < part.heads; ++head) {
      for (int b = 0; b < count; ++b) values[b] = head_of(layer_.values, part, group.first + b, head);
      for_tiles(part.rows, [&](int row, int rows) {
        const bool asks = row == 0 && later.blocks.count() > 0;
        t.asked_segments = asks ? asked : nullptr;
        row += head * part.rows;
        for (int panel = 0, width = 0; panel < panels; panel += width) {
          width = panels - panel >= 4 && tile_fits(rows, 4) ? 4 : panels - panel >= 2 && tile_fits(rows, 2) ? 2 : 1;
          const size_t offset = size_t(panel) * g_.value_panel_bytes();
          for (int b = 0; b < count; ++b) blocks[b] = values[b] + offset;
          for (int b = 0; asks && b < count; ++b) asked[b] = asked_at(later, head * count + b) + offset;
          t.a = a + size_t(row) * kRowBytes + size_t((group.first - first_block) * g_.slots) * (form_ == Form::kF32 ? 4 : 2);
          t.b = t.ahead = blocks[0];
          t.c = state.values + size_t(row) * size_t(g_.width) + size_t(panel) * kPanel;
          tiles_.tiles[rows - 1][width / 2](t);
        }
      });
    }
  }

  // The `index`-th head of what is asked for, in the order of addresses within a block; behind the last block, of that one.
  const uint8_t* asked_at(const Asked& later, int index) const {
    const int heads = later.part.heads, block = std::min(later.blocks.first + index / heads, later.blocks.end - 1);
    return head_of(later.cache, later.part, block, index % heads);
  }

  const appl_attention& op_;
  const KvGeometry& g_;
  const KvLayer& layer_;
  const appl_step& step_;
  const int group_;
  const Form form_;
  const TileTable& tiles_;
  const float scale_;
  const int chunk_blocks_;
  int segment_blocks_;
  int64_t most_work_, num_items_;
  int rows_;        // the most of an item
  int splits_;      // segments of each item that threads may take on their own; 1: items run whole
};

}  // namespace

size_t attention_workspace_bytes(int num_threads, int max_width) {
  return size_t(num_threads) * scratch_bytes(max_width) + partials_floats(num_threads, max_width) * sizeof(float);
}

void run_attention(appl_pool& pool, const appl_attention& op, const KvLayer& layer, const appl_step& step,
                   uint8_t* workspace) {
  const int width = layer.geometry.width;
  const Attention attention(op, layer, step, pool.num_threads());
  float* partials = reinterpret_cast<float*>(workspace + size_t(pool.num_threads()) * scratch_bytes(width));
  const auto scratch_of = [&](int thread) {
    uint8_t* memory = workspace + size_t(thread) * scratch_bytes(width);
    Scratch scratch;
    scratch.queries = memory;
    scratch.scores = reinterpret_cast<float*>(memory + query_bytes(width));
    scratch.probabilities = memory + query_bytes(width) + kRows * kRowBytes;
    float* states = reinterpret_cast<float*>(scratch.probabilities + kRows * kRowBytes);
    scratch.segment = state_at(states, kRows, width);
    scratch.total = state_at(states + state_floats(kRows, width), kRows, width);
    return scratch;
  };
  Chunks parts(attention.num_parts(), 1);
  auto work = [&](int thread) {
    Scratch scratch = scratch_of(thread);
    Attention::Cursor at;
    const auto claim = [&] {
      int64_t index, end;
      parts.next(index, end);
      return attention.turn(index, at);
    };
    for (auto turn = claim(); turn.index < attention.num_parts();) {
      turn = attention.splits() == 1 ? attention.run(turn, scratch, claim) : attention.run_segment(turn, scratch, partials, claim);
    }
  };
  pool.run(work);
  if (attention.splits() == 1) return;
  const State total = scratch_of(0).total;
  Attention::Cursor at;
  for (int64_t item = 0; item < attention.num_items(); ++item) attention.join(item, partials, total, at);
}

}  // namespace appl
