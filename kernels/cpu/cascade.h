// Cascade attention (Juravsky et al., "Hydragen", arXiv:2402.05099): decodes whose block tables begin with the same blocks read that
// prefix once together, before each reads the rest by itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "appliance_abi.h"

namespace appl {

// The cuts of a sequence's keys, in blocks: the online softmax goes over chunks, and starts again with each segment.
struct KeyCuts {
  int chunk, segment;
  explicit KeyCuts(const appl_limits& limits);
};

// Keys from first_key on, and the tokens that read them: either tokens of one sequence, of which the last sees the last key, the one
// before it all but that, and so on; or one token of each of several sequences that share these keys, and all see all of them. If
// first_key is not 0, a token continues from the state of its earlier reading.
struct Reading {
  const int32_t* sequences;  // indices in the step
  int num_tokens;
  bool is_shared;  // several sequences read these keys together
  int first_key, end_key;
};

class Cascade {
 public:
  explicit Cascade(const appl_limits& limits);

  // Computes the readings of a checked step. `shares`: some layers have full attention. They are valid as long as the step's arrays, and
  // until the next call.
  void set(const appl_step& step, bool shares);

  const KeyCuts& cuts() const { return cuts_; }

  // Levels run one after the other. In the last one, each sequence reads its own keys.
  int num_levels() const { return num_shared_ + 1; }
  std::span<const Reading> level(int index) const { return index < num_shared_ ? shared_[size_t(index)] : num_shared_ > 0 ? own_ : whole_; }
  // The readings without sharing: each sequence from its first key on, in one level.
  std::span<const Reading> whole() const { return whole_; }

  // All keys that a sequence of the step did not read itself.
  int64_t shared_keys() const { return shared_keys_; }

 private:
  void share(int begin, int end, int first, int known, int level);
  bool read_together(int begin, int end, int first, int stop, int level);
  // The next block at which a shared reading may end. Only the first segment may be cut at any chunk: after it, a row would have to carry
  // its running softmax beside its total.
  int next_cut(int block) const { return block + (block < cuts_.segment ? cuts_.chunk : cuts_.segment); }
  int common(int a, int b, int block) const;
  bool is_common(int a, int b, int from, int to) const;

  const int block_size_;
  const KeyCuts cuts_;
  std::vector<int32_t> all_;                  // 0, 1, ...
  std::vector<int32_t> decodes_;              // in the order of their block tables
  std::vector<Reading> whole_, own_;          // of all sequences
  std::vector<std::vector<Reading>> shared_;  // by level; unused ones are kept to reuse their memory
  int num_shared_ = 0;                        // levels in use
  int64_t shared_keys_ = 0;
  std::vector<std::span<const int32_t>> tables_;  // for each sequence, the blocks that hold only keys of earlier steps
};

}  // namespace appl
