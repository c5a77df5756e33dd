#include "attention_parts.h"

#include "attention_state.h"

namespace appl {
namespace {

constexpr int kPartialsPerThread = 32;  // appliance/plan/sizes.py counts them
constexpr int kItemsPerThread = 4;      // so many items of all KV heads balance the threads; fewer are split into segments
constexpr int kLongestPerThread = 2;    // the longest whole item is a thread's share divided by this; a longer one has fewer heads

// Returns whether parts of about equal time balance the threads; the last part of each sequence is short.
bool share_out_well(int64_t parts, int threads) {
  return parts > threads && 3 * parts >= 2 * int64_t{divided(int(parts), threads)} * threads;
}

}  // namespace

size_t partials_floats(int threads, int width) { return size_t(kPartialsPerThread * threads) * state_floats(kAttentionRows, width); }

AttentionParts::AttentionParts(const appl_attention& op, const KvGeometry& geometry, const KeyCuts& cuts, std::span<const Reading> readings,
                               int threads)
    : op_(op), geometry_(geometry), cuts_(cuts), readings_(readings), group_(op.num_heads / geometry.num_kv_heads),
      most_heads_(geometry.num_kv_heads) {
  divide();
  if (num_items_ >= kItemsPerThread * threads || !split(threads)) divide_by_work(threads);
}

// Splits items into segments, with as many heads per item as still leaves enough for all threads. False if their results do not fit.
bool AttentionParts::split(int threads) {
  while (most_heads_ > 1 && !share_out_well(num_segments_, threads)) {
    --most_heads_;
    divide();
  }
  const int64_t floats = num_items_ * most_segments_ * int64_t(state_floats(rows_, geometry_.value_width));
  const bool fits = floats <= int64_t(partials_floats(threads, geometry_.value_width));
  if (fits) splits_ = most_segments_;
  return fits;
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
  const int first_key = sees_all(op_) ? reading.first_key : first_seen(op_, position(part, 0));
  part.first_block = first_key / geometry_.block_size;
  part.end_block = position(part, part.rows - 1) / geometry_.block_size + 1;
  return part;
}

// The KV heads per item of the reading. They are adjacent in a block, and memory is fastest when all are read together.
int AttentionParts::heads_of(const Reading& reading) const {
  const int fit = kAttentionRows / std::max(1, reading.num_tokens * group_);
  int heads = int(std::min<int64_t>(most_work_ / std::max<int64_t>(1, work_of(reading)), std::min(fit, most_heads_)));
  while (heads > 1 && geometry_.num_kv_heads % heads != 0) --heads;
  return std::max(1, heads);
}

// The segment of the first key that is seen.
int AttentionParts::first_segment(const Reading& reading) const {
  const int first = sees_all(op_) ? 0 : first_seen(op_, reading.end_key - reading.num_tokens);
  return segment_of(std::max(reading.first_key, first) / geometry_.block_size);
}

int AttentionParts::segments_of(const Reading& reading) const {
  return segment_of((reading.end_key - 1) / geometry_.block_size) + 1 - first_segment(reading);
}

// Divides into whole items; longer ones have fewer heads.
void AttentionParts::divide_by_work(int threads) {
  int64_t work = 0;
  for (const Reading& reading : readings_) work += work_of(reading) * geometry_.num_kv_heads;
  most_heads_ = geometry_.num_kv_heads;
  most_work_ = work / (kLongestPerThread * threads);
  divide();
}

void AttentionParts::divide() {
  num_items_ = num_segments_ = 0;
  rows_ = most_segments_ = 1;
  for (const Reading& reading : readings_) {
    const int64_t items = items_of(reading);
    const int segments = segments_of(reading);
    num_items_ += items;
    num_segments_ += items * segments;
    most_segments_ = std::max(most_segments_, segments);
    rows_ = std::max(rows_, std::min(kAttentionRows, reading.num_tokens * group_) * heads_of(reading));
  }
}

}  // namespace appl
