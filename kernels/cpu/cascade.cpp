#include "cascade.h"

#include <algorithm>
#include <numeric>

#include "memory.h"
#include "prepared.h"
#include "simd.h"

namespace appl {
namespace {

constexpr int kMaxSegments = 128;      // of a sequence
constexpr int64_t kLeastSaved = 1024;  // keys; to share the reading of fewer costs more than it saves

}  // namespace

KeyCuts::KeyCuts(const appl_limits& limits) : chunk(int(kRowBytes / sizeof(float) / round_up(size_t(limits.block_size), kPanel))) {
  const int chunks = divided(divided(limits.max_model_len, limits.block_size), chunk);
  segment = chunk * divided(chunks, kMaxSegments);
}

Cascade::Cascade(const appl_limits& limits) : block_size_(limits.block_size), cuts_(limits), all_(size_t(limits.max_seqs)) {
  std::iota(all_.begin(), all_.end(), 0);
  for (auto* readings : {&whole_, &own_}) readings->reserve(all_.size());
  decodes_.reserve(all_.size());
  tables_.reserve(all_.size());
}

void Cascade::set(const appl_step& step, bool shares) {
  whole_.clear();
  tables_.clear();
  decodes_.clear();
  num_shared_ = 0;
  shared_keys_ = 0;
  for (int s = 0; s < step.num_seqs; ++s) {
    const int tokens = step.query_start[s + 1] - step.query_start[s], length = step.seq_lens[s];
    whole_.push_back({&all_[size_t(s)], tokens, false, 0, length});
    if (!shares) continue;
    const int32_t* table = step.block_tables + size_t(s) * size_t(step.block_table_stride);
    tables_.emplace_back(table, size_t((length - tokens) / block_size_));
    if (tokens == 1) decodes_.push_back(s);
  }
  if (decodes_.size() < 2) return;
  std::sort(decodes_.begin(), decodes_.end(),
            [this](int a, int b) { return std::ranges::lexicographical_compare(tables_[size_t(a)], tables_[size_t(b)]); });
  own_ = whole_;
  share(0, int(decodes_.size()), 0, 0, 0);
}

// Adds shared readings of decodes [begin, end), which share the blocks before `known` and have read those before `first`: of
// neighbours that share more.
void Cascade::share(int begin, int end, int first, int known, int level) {
  for (int next; begin < end; begin = next) {
    const int one = decodes_[size_t(begin)];
    for (next = begin + 1; next < end && is_common(one, decodes_[size_t(next)], known, next_cut(known));) ++next;
    if (next - begin < 2) continue;
    const int stop = common(one, decodes_[size_t(next - 1)], known);
    if (read_together(begin, next, first, stop, level)) share(begin, next, stop, stop, level + 1);
    else share(begin, next, first, stop, level);  // some of them may share enough
  }
}

bool Cascade::read_together(int begin, int end, int first, int stop, int level) {
  const Reading reading{&decodes_[size_t(begin)], end - begin, true, first * block_size_, stop * block_size_};
  const int64_t saved = int64_t{end - begin - 1} * (reading.end_key - reading.first_key);
  if (saved < kLeastSaved) return false;
  shared_keys_ += saved;
  if (level == int(shared_.size())) shared_.emplace_back();
  if (level == num_shared_) shared_[size_t(num_shared_++)].clear();
  shared_[size_t(level)].push_back(reading);
  for (int i = begin; i < end; ++i) own_[size_t(decodes_[size_t(i)])].first_key = reading.end_key;
  return true;
}

// The last cut before which two sequences share all blocks, given that they share those before `block`.
int Cascade::common(int a, int b, int block) const {
  while (is_common(a, b, block, next_cut(block))) block = next_cut(block);
  return block;
}

bool Cascade::is_common(int a, int b, int from, int to) const {
  const auto &x = tables_[size_t(a)], &y = tables_[size_t(b)];
  return size_t(to) <= std::min(x.size(), y.size()) && std::equal(x.begin() + from, x.begin() + to, y.begin() + from);
}

}  // namespace appl
