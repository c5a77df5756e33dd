// Who reads which keys of the cache together: decodes whose block tables begin alike read that once for all of them, before each
// reads on by itself (cascade attention; Juravsky et al., "Hydragen", arXiv:2402.05099).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "appliance_abi.h"

namespace appl {

// Where attention cuts a sequence's keys, in blocks: an online softmax goes over chunks, and begins anew with each segment.
struct KeyCuts {
  int chunk, segment;
  explicit KeyCuts(const appl_limits& limits);
};

// Keys from first_key on, and the tokens that read them: those of one sequence, the last of which sees the last key, the one before
// it all but that, and so on; or a token of each of several sequences that have these keys in common, and all see all of them. From
// first_key on, where that is not 0, a token goes on from what it has read before.
struct Reading {
  const int32_t* sequences;  // of the step
  int num_tokens;
  bool is_shared;  // by several sequences
  int first_key, end_key;
};

class Cascade {
 public:
  explicit Cascade(const appl_limits& limits);

  // Of a checked step; `shares`: there are layers in which a query sees all keys before it. Valid as long as the step's arrays and until
  // the next call.
  void set(const appl_step& step, bool shares);

  const KeyCuts& cuts() const { return cuts_; }

  // Levels go one after the other. In the last each sequence reads what it has for itself.
  int num_levels() const { return num_shared_ + 1; }
  std::span<const Reading> level(int index) const { return index < num_shared_ ? shared_[size_t(index)] : num_shared_ > 0 ? own_ : whole_; }
  // Each sequence from its first key on, in one level.
  std::span<const Reading> whole() const { return whole_; }

  // Keys that were read for another sequence of the step, in all.
  int64_t shared_keys() const { return shared_keys_; }

 private:
  void share(int begin, int end, int first, int known, int level);
  bool read_together(int begin, int end, int first, int stop, int level);
  // Where a shared reading may end. Only the first segment may be cut at any chunk: behind it a row's running softmax would have to be
  // handed on beside its total.
  int next_cut(int block) const { return block + (block < cuts_.segment ? cuts_.chunk : cuts_.segment); }
  int common(int a, int b, int block) const;
  bool is_common(int a, int b, int from, int to) const;

  const int block_size_;
  const KeyCuts cuts_;
  std::vector<int32_t> all_;                  // 0, 1, ...
  std::vector<int32_t> decodes_;              // in the order of their block tables
  std::vector<Reading> whole_, own_;          // of all sequences
  std::vector<std::vector<Reading>> shared_;  // by level; kept for their memory
  int num_shared_ = 0;                        // levels in use
  int64_t shared_keys_ = 0;
  std::vector<std::span<const int32_t>> tables_;  // of each sequence the blocks that hold nothing but keys of earlier steps
};

}  // namespace appl
