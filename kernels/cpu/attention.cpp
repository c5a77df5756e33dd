#include "attention.h"

#include <algorithm>
#include <limits>

#include "activation.h"
#include "memory.h"
#include "tile.h"

namespace appl {
namespace {

// An item is up to kRows query rows (tokens times the heads that share a KV head) of one sequence and KV head. It goes
// over the keys in chunks of kChunk slots, keeping each row's maximum, sum and weighted values (online softmax).
constexpr int kRows = 48;
constexpr int kChunk = int(kRowBytes / sizeof(float));
constexpr int kSplitLength = 512;   // keys; shorter sequences are not shared out
constexpr int kBlocksAhead = 4;     // whose keys are asked for
const uint8_t* const kNever = reinterpret_cast<const uint8_t*>(UINTPTR_MAX);  // end of panels: ask_for prefetches
constexpr int kPartialsPerThread = 4;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// A thread's memory: all rows are kRowBytes apart, as the tiles want their input.
struct Scratch {
  uint8_t* queries;        // [blocks of width][kRows][kRowBytes], scaled
  float* scores;           // [kRows][kChunk]
  uint8_t* probabilities;  // the scores in the form that the value tiles read
  float* values;           // [kRows][width]
  float maximum[kRows], sum[kRows];
};

size_t query_bytes(int width) {
  return size_t(kRows) * kRowBytes * size_t((width + block_columns(Form::kF32) - 1) / block_columns(Form::kF32));
}
size_t scratch_bytes(int width) {
  return round_up(query_bytes(width) + 2 * kRows * kRowBytes + size_t(kRows) * size_t(width) * 4, 4096);
}
size_t partial_floats(int width) { return size_t(kRows) * size_t(width + 2); }

struct Part {
  int sequence, kv_head, first_row, rows;  // rows of the sequence's tokens times heads a group
  int first_block, end_block;              // of the sequence's block table
};

class Attention {
 public:
  Attention(const appl_attention& op, const KvLayer& layer, const appl_step& step, int threads)
      : op_(op), g_(layer.geometry), layer_(layer), step_(step), group_(op.num_heads / layer.geometry.num_kv_heads),
        form_(g_.layout == APPL_BF16 ? kBf16Form : Form::kF32),
        tiles_(g_.layout == APPL_F32 ? kF32Tiles : g_.layout == APPL_F16 ? kF16Tiles
               : form_ == Form::kF32 ? kBf16Tiles : kBf16DotTiles) {
    int longest = 0;
    for (int s = 0; s < step.num_seqs; ++s) {
      num_items_ += items_of(s);
      longest = std::max(longest, visible_keys(s));
    }
    if (num_items_ > 0 && num_items_ < 2 * threads && longest >= kSplitLength) {
      splits_ = std::min((kPartialsPerThread * threads) / int(num_items_), longest / (kSplitLength / 2));
      splits_ = std::max(splits_, 1);
    }
  }

  int64_t num_parts() const { return num_items_ * splits_; }
  int splits() const { return splits_; }
  int64_t num_items() const { return num_items_; }

  Part part(int64_t index) const {
    int64_t item = index / splits_;
    int s = 0;
    while (item >= items_of(s)) item -= items_of(s++);
    const int tiles = int(items_of(s)) / g_.num_kv_heads;
    const int all_rows = tokens_of(s) * group_;
    Part part{};
    part.sequence = s;
    part.kv_head = int(item) / tiles;
    part.first_row = int(item) % tiles * kRows;
    part.rows = std::min(kRows, all_rows - part.first_row);
    const int last_position = position(part, part.rows - 1);
    const int first_key = op_.window > 0 ? std::max(0, position(part, 0) - op_.window + 1) : 0;
    const int first = first_key / g_.block_size, end = last_position / g_.block_size + 1;
    const int split = int(index % splits_);
    part.first_block = first + int(int64_t(end - first) * split / splits_);
    part.end_block = first + int(int64_t(end - first) * (split + 1) / splits_);
    return part;
  }

  // Fills scratch.maximum, sum and values (not yet divided by the sum).
  void compute(const Part& part, Scratch& scratch) const {
    load_queries(part, scratch);
    std::fill_n(scratch.values, size_t(kRows) * size_t(g_.width), 0.0f);
    std::fill_n(scratch.maximum, kRows, kMinusInfinity);
    std::fill_n(scratch.sum, kRows, 0.0f);
    const int step = kChunk / g_.slots;
    const int asked = std::min(part.first_block + kBlocksAhead, part.end_block);
    for (int block = part.first_block; block < asked; ++block) ask_for(part, block);
    for (int block = part.first_block; block < part.end_block; block += step) {
      const int count = std::min(step, part.end_block - block);
      score(part, block, count, scratch);
      for (int row = 0; row < part.rows; ++row) normalize(part, row, block, count, scratch);
      add_values(part, block, count, scratch);
    }
  }

  void write(const Part& part, const Scratch& scratch) const {
    for (int row = 0; row < part.rows; ++row) {
      const float* values = scratch.values + size_t(row) * size_t(g_.width);
      const float inverse = 1.0f / scratch.sum[row];
      map(out_row(part, row), g_.head_dim, [inverse](Floats v) { return v * inverse; }, values);
    }
  }

  void save(const Part& part, const Scratch& scratch, float* partial) const {
    std::copy_n(scratch.maximum, part.rows, partial);
    std::copy_n(scratch.sum, part.rows, partial + kRows);
    std::copy_n(scratch.values, size_t(part.rows) * size_t(g_.width), partial + 2 * kRows);
  }

  // Joins the partial results of an item's splits.
  void merge(int64_t item, const float* partials) const {
    const Part first = part(item * splits_);
    for (int row = 0; row < first.rows; ++row) {
      float maximum = kMinusInfinity, sum = 0;
      for (int s = 0; s < splits_; ++s) maximum = std::max(maximum, partials[size_t(s) * stride() + size_t(row)]);
      float* out = out_row(first, row);
      std::fill_n(out, g_.head_dim, 0.0f);
      for (int s = 0; s < splits_; ++s) {
        const float* partial = partials + size_t(s) * stride();
        const float weight = std::exp(partial[row] - maximum);
        if (weight == 0) continue;
        sum += weight * partial[kRows + row];
        const float* values = partial + 2 * kRows + size_t(row) * size_t(g_.width);
        map(out, g_.head_dim, [weight](Floats a, Floats b) { return a + weight * b; }, out, values);
      }
      const float inverse = 1.0f / sum;
      map(out, g_.head_dim, [inverse](Floats v) { return v * inverse; }, out);
    }
  }

  size_t stride() const { return partial_floats(g_.width); }

 private:
  int tokens_of(int s) const { return step_.query_start[s + 1] - step_.query_start[s]; }
  int64_t items_of(int s) const { return int64_t((tokens_of(s) * group_ + kRows - 1) / kRows) * g_.num_kv_heads; }
  int visible_keys(int s) const {
    return op_.window > 0 ? std::min(op_.window + tokens_of(s), step_.seq_lens[s]) : step_.seq_lens[s];
  }
  int position(const Part& part, int row) const {
    return step_.seq_lens[part.sequence] - tokens_of(part.sequence) + (part.first_row + row) / group_;
  }
  size_t token(const Part& part, int row) const {
    return size_t(step_.query_start[part.sequence] + (part.first_row + row) / group_);
  }
  size_t head_column(const Part& part, int row) const {
    return size_t(part.kv_head * group_ + (part.first_row + row) % group_) * size_t(g_.head_dim);
  }
  float* out_row(const Part& part, int row) const {
    return op_.out.data + token(part, row) * size_t(op_.out.stride) + head_column(part, row);
  }
  int block_id(const Part& part, int block) const {
    return step_.block_tables[size_t(part.sequence) * size_t(step_.block_table_stride) + size_t(block)];
  }
  int query_blocks() const { return (g_.width + block_columns(form_) - 1) / block_columns(form_); }

  void load_queries(const Part& part, Scratch& scratch) const {
    const int columns = block_columns(form_);
    for (int row = 0; row < part.rows; ++row) {
      const float* q = op_.q.data + token(part, row) * size_t(op_.q.stride) + head_column(part, row);
      for (int block = 0; block < query_blocks(); ++block) {
        uint8_t* to = scratch.queries + (size_t(block) * kRows + size_t(row)) * kRowBytes;
        std::memset(to, 0, kRowBytes);
        const int first = block * columns, count = std::min(columns, g_.head_dim - first);
        if (form_ == Form::kF32) {
          map(reinterpret_cast<float*>(to), count, [this](Floats v) { return v * op_.scale; }, q + first);
        } else {
          for (int j = 0; j < count; ++j) reinterpret_cast<uint16_t*>(to)[j] = float_to_bf16(q[first + j] * op_.scale);
        }
      }
    }
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
    const uint8_t* at = layer_.keys + g_.offset(block_id(part, block), part.kv_head);
    for (size_t i = 0; i < g_.head_bytes(); i += kLine) __builtin_prefetch(at + i, 0, 2);
  }

  // Panels of a block, or of two blocks of one panel each: then the distance between the blocks serves as that between panels.
  struct Panels {
    const uint8_t* first;
    size_t stride;
    Panels at(int panel) const { return {first + size_t(panel) * stride, stride}; }
  };

  // Blocks past the end are the last one.
  Panels panels_of(const uint8_t* cache, const Part& part, int block, int blocks) const {
    const auto at = [&](int b) { return cache + g_.offset(block_id(part, std::min(b, part.end_block - 1)), part.kv_head); };
    return {at(block), blocks == 2 ? size_t(at(block + 1) - at(block)) : g_.key_panel_bytes()};
  }

  // Blocks of one panel are scored in pairs.
  void score(const Part& part, int first_block, int count, Scratch& scratch) const {
    const int panels = g_.slots / kPanel;
    for (int b = 0, blocks = 1; b < count; b += blocks) {
      blocks = panels == 1 && b + 1 < count ? 2 : 1;
      const Panels keys = panels_of(layer_.keys, part, first_block + b, blocks);
      const Panels next = panels_of(layer_.keys, part, first_block + b + kBlocksAhead, blocks);
      const Panels values = panels_of(layer_.values, part, first_block + b, blocks);  // read after the chunk's scores
      for_tiles(part.rows, [&](int row, int rows) {
        for (int panel = 0, width = 0; panel < panels * blocks; panel += width) {
          width = panels * blocks - panel >= 2 && tile_fits(rows, 2) ? 2 : 1;
          float* c = scratch.scores + size_t(row) * kChunk + size_t(b * g_.slots + panel * kPanel);
          score_tile(scratch, row, rows, keys.at(panel), next.at(panel), values.at(panel), width, c);
        }
      });
    }
  }

  // Lines of the keys that come later and of the values are asked for a few at a step: many at once would keep the loads waiting.
  void score_tile(const Scratch& scratch, int row, int rows, const Panels& keys, const Panels& next, const Panels& values,
                  int width, float* c) const {
    TileArgs t{};
    t.panel_bytes = keys.stride;
    t.panel_end = kNever;
    t.asks = row == 0;
    t.asked_stride[0] = next.stride;
    t.asked_stride[1] = values.stride;
    t.c = c;
    t.ldc = kChunk;
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
    return (position / g_.block_size - first_block) * g_.slots + position % g_.block_size;
  }

  // Turns a row's scores into probabilities relative to its new maximum, and rescales what it has summed so far.
  void normalize(const Part& part, int row, int first_block, int count, Scratch& scratch) const {
    float* s = scratch.scores + size_t(row) * kChunk;
    const int last = position(part, row), first = op_.window > 0 ? std::max(0, last - op_.window + 1) : 0;
    const int begin = std::max(0, column(first, first_block));
    const int end = std::min(count * g_.slots, column(last, first_block) + 1);
    const int low = begin / kWidth * kWidth, high = int(round_up(size_t(std::max(end, 0)), kWidth));
    if (begin >= end) {
      std::fill_n(s, count * g_.slots, 0.0f);
      return store_probabilities(s, row, count, scratch);
    }
    std::fill(s, s + begin, kMinusInfinity);
    std::fill(s + end, s + count * g_.slots, kMinusInfinity);
    mask_padding(s, count);
    const float maximum = std::max(scratch.maximum[row], cap_and_find_maximum(s, low, high));
    const float correction = std::exp(scratch.maximum[row] - maximum);
    std::fill(s, s + low, 0.0f);
    Floats sum{};
    for (int i = low; i < high; i += kWidth) {
      const Floats p = vexp(load(s + i) - maximum);
      store(s + i, p);
      sum += p;
    }
    std::fill(s + high, s + count * g_.slots, 0.0f);
    scratch.sum[row] = scratch.sum[row] * correction + reduce_add(sum);
    scratch.maximum[row] = maximum;
    float* values = scratch.values + size_t(row) * size_t(g_.width);
    if (correction != 1.0f) map(values, g_.width, [correction](Floats v) { return v * correction; }, values);
    store_probabilities(s, row, count, scratch);
  }

  void mask_padding(float* s, int count) const {
    if (g_.slots == g_.block_size) return;
    for (int b = 0; b < count; ++b) std::fill(s + b * g_.slots + g_.block_size, s + (b + 1) * g_.slots, kMinusInfinity);
  }

  float cap_and_find_maximum(float* s, int low, int high) const {
    Floats maximum = splat(kMinusInfinity);
    const float cap = op_.soft_cap, inverse = cap > 0 ? 1.0f / cap : 0.0f;
    for (int i = low; i < high; i += kWidth) {
      Floats v = load(s + i);
      if (cap > 0) {
        v = v > kMinusInfinity ? cap * vtanh(v * inverse) : v;
        store(s + i, v);
      }
      maximum = vmax(v, maximum);
    }
    return reduce_max(maximum);
  }

  void store_probabilities(const float* s, int row, int count, Scratch& scratch) const {
    if (form_ == Form::kF32) return;  // read in place
    uint16_t* out = reinterpret_cast<uint16_t*>(scratch.probabilities + size_t(row) * kRowBytes);
    for (int i = 0; i < count * g_.slots; i += kWidth) store(out + i, floats_to_bf16(load(s + i)));
  }

  void add_values(const Part& part, int first_block, int count, Scratch& scratch) const {
    const uint8_t* blocks[kChunk / kPanel];
    const uint8_t* a = form_ == Form::kF32 ? reinterpret_cast<const uint8_t*>(scratch.scores) : scratch.probabilities;
    const int panels = g_.width / kPanel;
    for_tiles(part.rows, [&](int row, int rows) {
      for (int panel = 0, width = 0; panel < panels; panel += width) {
        width = panels - panel >= 4 && tile_fits(rows, 4) ? 4 : panels - panel >= 2 && tile_fits(rows, 2) ? 2 : 1;
        for (int b = 0; b < count; ++b) {
          blocks[b] = layer_.values + g_.offset(block_id(part, first_block + b), part.kv_head) +
                      size_t(panel) * g_.value_panel_bytes();
        }
        TileArgs t{};
        t.a = a + size_t(row) * kRowBytes;
        t.b = t.ahead = blocks[0];
        t.panel_bytes = g_.value_panel_bytes();
        t.panel_end = kNever;
        t.columns = t.last_columns = g_.slots;
        t.more = blocks + 1;
        t.num_more = count - 1;
        t.c = scratch.values + size_t(row) * size_t(g_.width) + size_t(panel) * kPanel;
        t.ldc = size_t(g_.width);
        t.add = true;
        tiles_.tiles[rows - 1][width / 2](t);
      }
    });
  }

  const appl_attention& op_;
  const KvGeometry& g_;
  const KvLayer& layer_;
  const appl_step& step_;
  const int group_;
  const Form form_;
  const TileTable& tiles_;
  int64_t num_items_ = 0;
  int splits_ = 1;
};

}  // namespace

size_t attention_workspace_bytes(int num_threads, int max_width) {
  const size_t partials = size_t(kPartialsPerThread * num_threads) * partial_floats(max_width) * sizeof(float);
  return size_t(num_threads) * scratch_bytes(max_width) + partials;
}

void run_attention(appl_pool& pool, const appl_attention& op, const KvLayer& layer, const appl_step& step,
                   uint8_t* workspace) {
  const int width = layer.geometry.width;
  const Attention attention(op, layer, step, pool.num_threads());
  float* partials = reinterpret_cast<float*>(workspace + size_t(pool.num_threads()) * scratch_bytes(width));
  Chunks parts(attention.num_parts(), 1);
  auto work = [&](int thread) {
    uint8_t* memory = workspace + size_t(thread) * scratch_bytes(width);
    Scratch scratch;
    scratch.queries = memory;
    scratch.scores = reinterpret_cast<float*>(memory + query_bytes(width));
    scratch.probabilities = memory + query_bytes(width) + kRows * kRowBytes;
    scratch.values = reinterpret_cast<float*>(scratch.probabilities + kRows * kRowBytes);
    int64_t index, end;
    while (parts.next(index, end)) {
      const Part part = attention.part(index);
      attention.compute(part, scratch);
      if (attention.splits() == 1) attention.write(part, scratch);
      else attention.save(part, scratch, partials + size_t(index) * attention.stride());
    }
  };
  pool.run(work);
  for (int64_t item = 0; attention.splits() > 1 && item < attention.num_items(); ++item) {
    attention.merge(item, partials + size_t(item * attention.splits()) * attention.stride());
  }
}

}  // namespace appl
