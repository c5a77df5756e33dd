// A thread's memory while it goes over the keys of a part.
#pragma once

#include "attention_parts.h"
#include "attention_state.h"
#include "memory.h"
#include "prepared.h"

namespace appl {

constexpr int kChunk = int(kRowBytes / sizeof(float));  // slots of a chunk of keys

// A thread's memory: all rows except those of values are kRowBytes apart, as tiles read their input.
struct Scratch {
  uint8_t* queries;        // [blocks of width][kAttentionRows][kRowBytes], scaled
  float* scores;           // [kAttentionRows][kChunk]
  uint8_t* probabilities;  // the scores in the form that the value tiles read
  State segment, total;
  int64_t item = -1;  // the item of these queries, if segments are taken separately
  int asked = 0;      // blocks of the next chunk whose keys have been prefetched
};

inline size_t query_bytes(int width) {
  return size_t(kAttentionRows) * kRowBytes * size_t((width + block_columns(Form::kF32) - 1) / block_columns(Form::kF32));
}
inline size_t scratch_bytes(int width) {
  return round_up(query_bytes(width) + 2 * kAttentionRows * kRowBytes + 2 * state_floats(kAttentionRows, width) * sizeof(float), 4096);
}
inline Scratch scratch_at(uint8_t* memory, int width) {
  Scratch scratch;
  scratch.queries = memory;
  scratch.scores = reinterpret_cast<float*>(memory + query_bytes(width));
  scratch.probabilities = memory + query_bytes(width) + kAttentionRows * kRowBytes;
  float* states = reinterpret_cast<float*>(scratch.probabilities + kAttentionRows * kRowBytes);
  scratch.segment = state_at(states, kAttentionRows, width);
  scratch.total = state_at(states + state_floats(kAttentionRows, width), kAttentionRows, width);
  return scratch;
}

}  // namespace appl
