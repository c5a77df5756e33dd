// The division of the attention of some readings into parts, which threads take in turn.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "appliance_abi.h"
#include "cascade.h"
#include "kv_cache.h"
#include "memory.h"

namespace appl {

constexpr int kAttentionRows = 48;  // the most rows of a part

// Up to kAttentionRows rows of queries of a reading. The rows of a KV head are tokens times the heads that share it; a part with few of
// them takes several KV heads, which are adjacent in each block.
struct Part {
  const Reading* reading;
  int kv_head, heads;          // KV heads from kv_head on
  int first_row, rows;         // of each KV head: among the reading's tokens times heads per group
  int first_block, end_block;  // of the block table
  int all_rows() const { return heads * rows; }
};

// The floats that the partial results of segments need. width: that of values.
size_t partials_floats(int threads, int width);

inline bool sees_all(const appl_attention& op) { return op.window == 0 && op.chunk == 0; }

// The first key that a query at `position` sees.
inline int first_seen(const appl_attention& op, int position) {
  if (op.chunk > 0) return position / op.chunk * op.chunk;
  return op.window > 0 ? std::max(0, position - op.window + 1) : 0;
}

class AttentionParts {
 public:
  AttentionParts(const appl_attention& op, const KvGeometry& geometry, const KeyCuts& cuts, std::span<const Reading> readings, int threads);

  int64_t num_items() const { return num_items_; }
  int64_t num_parts() const { return num_items_ * splits_; }
  int splits() const { return splits_; }  // segments of each item that threads take separately; 1: items run whole
  int rows() const { return rows_; }      // the most rows of an item

  // A reading and the index of its first item, for taking items in order.
  struct Cursor {
    size_t reading = 0;
    int64_t first = 0;
  };
  Part item(int64_t index, Cursor& at) const;

  // A thread's next work: an item, or one segment of it if items are split; none from num_parts() on.
  struct Turn {
    int64_t index;
    Part part;
  };
  Turn turn(int64_t index, Cursor& at) const {
    if (index >= num_parts()) return {index, Part{}};
    if (splits_ == 1) return {index, item(index, at)};
    const Part whole = item(index / splits_, at);
    return {index, segment(whole, first_segment(*whole.reading) + int(index % splits_))};
  }

  int segment_of(int block) const { return block / cuts_.segment; }
  int segment_start(int block) const { return segment_of(block) * cuts_.segment; }
  // One segment of a part; it may have no blocks.
  Part segment(Part part, int index) const {
    part.first_block = std::max(part.first_block, index * cuts_.segment);
    part.end_block = std::min(part.end_block, (index + 1) * cuts_.segment);
    return part;
  }

  // The blocks of a chunk.
  struct Blocks {
    int first, end;
    int count() const { return end - first; }
  };
  Blocks chunk_at(const Part& part, int block) const { return {block, std::min(chunk_start(block) + cuts_.chunk, part.end_block)}; }
  int chunk_start(int block) const { return block / cuts_.chunk * cuts_.chunk; }

  // The last key that a row sees.
  int position(const Part& part, int row) const {
    const Reading& reading = *part.reading;
    return reading.is_shared ? reading.end_key - 1 : reading.end_key - reading.num_tokens + (part.first_row + row) / group_;
  }

 private:
  int tiles_of(const Reading& reading) const { return divided(reading.num_tokens * group_, kAttentionRows); }
  int64_t items_of(const Reading& reading) const { return int64_t(tiles_of(reading)) * (geometry_.num_kv_heads / heads_of(reading)); }
  static int64_t work_of(const Reading& reading) {  // for one head
    return int64_t(reading.num_tokens) * (reading.end_key - reading.first_key);
  }
  int heads_of(const Reading& reading) const;
  int first_segment(const Reading& reading) const;
  int segments_of(const Reading& reading) const;
  void divide();
  bool split(int threads);
  void divide_by_work(int threads);

  const appl_attention& op_;
  const KvGeometry& geometry_;
  const KeyCuts& cuts_;
  const std::span<const Reading> readings_;
  const int group_;
  int most_heads_;  // per item
  int64_t most_work_ = std::numeric_limits<int64_t>::max();
  int64_t num_items_, num_segments_;  // num_segments_: of all items
  int rows_, most_segments_, splits_ = 1;
};

}  // namespace appl
