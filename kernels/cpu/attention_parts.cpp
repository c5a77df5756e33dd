#include "attention_parts.h"

#include <limits>

#include "attention_state.h"

namespace appl {
namespace {

constexpr int kPartialsPerThread = 8;
constexpr int kItemsPerThread = 4;  // or more, where items have several KV heads

}  // namespace

size_t partials_floats(int threads, int width) { return size_t(kPartialsPerThread * threads) * state_floats(kAttentionRows, width); }

AttentionParts::AttentionParts(const appl_attention& op, const KvGeometry& geometry, const KeyCuts& cuts,
                               std::span<const Reading> readings, int threads)
    : geometry_(geometry), cuts_(cuts), readings_(readings), group_(op.num_heads / geometry.num_kv_heads), window_(op.window) {
  const int64_t least_items = int64_t{kItemsPerThread} * threads;
  if (int64_t(readings.size()) < 2 * threads) {  // of more, items are never split
    divide(std::numeric_limits<int64_t>::max(), threads);
    if (splits_ > 1 && num_parts() >= least_items) return;
  }
  int64_t work = 0;
  for (const Reading& reading : readings) work += work_of(reading) * geometry.num_kv_heads;
  divide(work / least_items, threads);
}

Part AttentionParts::item(int64_t index, Cursor& at) const {
  for (int64_t count; index >= at.first + (count = items_of(readings_[at.reading])); ++at.reading) at.first += count;
  const Reading& reading = readings_[at.reading];
  index -= at.first;
  const int tiles = tiles_of(reading);
  Part part{};
  part.reading = &reading;
  part.heads = heads_of(reading);
  part.kv_head = int(index) / tiles * part.heads;
  part.first_row = int(index) % tiles * kAttentionRows;
  part.rows = std::min(kAttentionRows, reading.num_tokens * group_ - part.first_row);
  const int first_key = window_ > 0 ? std::max(0, position(part, 0) - window_ + 1) : reading.first_key;
  part.first_block = first_key / geometry_.block_size;
  part.end_block = position(part, part.rows - 1) / geometry_.block_size + 1;
  return part;
}

// KV heads an item of the reading.
int AttentionParts::heads_of(const Reading& reading) const {
  const int most = kAttentionRows / std::max(1, reading.num_tokens * group_);
  int heads = int(std::min<int64_t>(most_work_ / std::max<int64_t>(1, work_of(reading)), std::min(most, geometry_.num_kv_heads)));
  while (heads > 1 && geometry_.num_kv_heads % heads != 0) --heads;
  return std::max(1, heads);
}

int AttentionParts::segments_of(const Reading& reading) const {
  return segment_of((reading.end_key - 1) / geometry_.block_size) + 1 - first_segment(reading);
}

// Into items of several heads up to so much work.
void AttentionParts::divide(int64_t most_work, int threads) {
  most_work_ = most_work;
  num_items_ = 0;
  rows_ = splits_ = 1;
  int segments = 1;
  for (const Reading& reading : readings_) {
    num_items_ += items_of(reading);
    rows_ = std::max(rows_, std::min(kAttentionRows, reading.num_tokens * group_) * heads_of(reading));
    segments = std::max(segments, segments_of(reading));
  }
  const size_t floats = size_t(num_items_) * size_t(segments) * state_floats(rows_, geometry_.width);
  if (num_items_ < 2 * threads && floats <= partials_floats(threads, geometry_.width)) splits_ = segments;
}

}  // namespace appl
