// Recurrent states: the memory of their slots, how the pieces of a step carry them on, and the operators that do.
//
// Every operator runs a sequence token by token, so its results are equal to the bit however the sequence is cut into pieces and steps.
// Products of chunks of tokens would depend on where a chunk begins, and save little: a token costs one pass over the state, whose
// decay is one operation in three or four.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "appliance_abi.h"
#include "caches.h"
#include "pool.h"
#include "simd.h"

namespace appl {

// A part of a state: `rows` rows of `width` floats, from one to the next `stride`.
struct StatePart {
  size_t offset;
  int rows;
  size_t width, stride;
};

inline size_t floats_of(const appl_state& state) { return size_t(state.size); }

// Prepares the slot that a piece leaves its state in: it holds the state with which the piece begins. Returns the part there.
inline float* begin_piece(const appl_step& step, const appl_state& state, int piece, const StatePart& part) {
  const int source = step.piece_source[piece], target = step.piece_target[piece];
  float* const to = state.data + size_t(target) * floats_of(state) + part.offset;
  if (source == target) return to;
  const float* const from = state.data + size_t(std::max(source, 0)) * floats_of(state) + part.offset;
  for (int row = 0; row < part.rows; ++row) {
    const size_t at = size_t(row) * part.stride;
    if (source < 0) std::fill_n(to + at, part.width, 0.0f);
    else std::memcpy(to + at, from + at, part.width * sizeof(float));
  }
  return to;
}

// Calls body(begin, end, part of the state) for the pieces of a sequence in order; it changes the state in place. Empty pieces only copy.
template <class Body>
inline void carry(const appl_step& step, const appl_state& state, int sequence, const StatePart& part, Body&& body) {
  for (int piece = step.piece_first[sequence]; piece < step.piece_first[sequence + 1]; ++piece) {
    float* const at = begin_piece(step, state, piece, part);
    const int begin = step.piece_start[piece], end = step.piece_start[piece + 1];
    if (begin < end) body(begin, end, at);
  }
}

// Tokens of a sequence of the step, on average.
inline int64_t tokens_per_sequence(const appl_step& step) { return 1 + step.num_tokens / std::max(step.num_seqs, 1); }

// The first `count` of a vector's floats; the others are zero, or are left as they are.
inline Floats load_first(const float* from, int count) {
  if (count >= kWidth) return load(from);
  Floats v{};
  std::memcpy(&v, from, size_t(count) * sizeof(float));
  return v;
}
inline void store_first(float* to, Floats v, int count) {
  if (count >= kWidth) return store(to, v);
  std::memcpy(to, &v, size_t(count) * sizeof(float));
}

// Some columns of rows. From: const float, to copy from; To: float.
template <class Float>
struct Rows {
  Float* data;
  size_t stride;
};

// Copies with vectors: a call of memcpy for each short row would cost more than the copying.
inline void copy_rows(Rows<const float> from, Rows<float> to, int count, int width) {
  for (int row = 0; row < count; ++row, from.data += from.stride, to.data += to.stride) {
    for (int i = 0; i < width; i += kWidth) store_first(to.data + i, load_first(from.data + i, width - i), width - i);
  }
}

inline void ask_for(const float* row, int count) {
  for (int i = 0; i < count; i += int(kLine / sizeof(float))) __builtin_prefetch(row + i);
}

// Throws Error if the pieces of a step do not cover its sequences, name a slot that is not there, or would race for one.
void check_pieces(const appl_step& step, int num_slots);

constexpr int kMaxTaps = 16;

// What operators keep from binding: a transposed vector, [rows][columns] of a vector [columns][rows].
std::vector<float> taps_of(const appl_short_conv& op);
std::vector<float> rates_of(const appl_state_space& op);  // by state: -exp(a_log) / ln 2; none otherwise

// The bytes that each thread needs while an operator runs.
size_t scratch_bytes(const appl_short_conv& op);
size_t scratch_bytes(const appl_gated_delta& op);
size_t scratch_bytes(const appl_state_space& op);

// Carries each head's `size` floats of the state of each sequence on, with a `Head` of its own that has the thread's scratch.
template <class Head, class Op>
void carry_heads(appl_pool& pool, const Op& op, int heads, size_t size, const appl_state& state, const appl_step& step, float* scratch) {
  const size_t floats = scratch_bytes(op) / sizeof(float);
  parallel_for(pool, int64_t(step.num_seqs) * heads, tokens_per_sequence(step) * int64_t(size),
               [&](int64_t begin, int64_t end, int thread) {
    for (int64_t item = begin; item < end; ++item) {
      const int index = int(item % heads);
      Head head(op, index, scratch + size_t(thread) * floats);
      const StatePart part{size_t(index) * size, 1, size, size};
      carry(step, state, int(item / heads), part, [&](int from, int to, float* at) { head.run(from, to, at); });
    }
  }, 1);
}

// `scratch` has the above bytes of each thread, one behind the other, aligned to 64.
void run_short_conv(appl_pool& pool, const appl_short_conv& op, const appl_state& state, const float* taps, const appl_step& step,
                    float* scratch);
void run_gated_delta(appl_pool& pool, const appl_gated_delta& op, const appl_state& state, const appl_step& step, float* scratch);
void run_state_space(appl_pool& pool, const appl_state_space& op, const appl_state& state, const float* rates, const appl_step& step,
                     float* scratch);
void run_rg_lru(appl_pool& pool, const appl_rg_lru& op, const appl_state& state, const appl_step& step);

}  // namespace appl
