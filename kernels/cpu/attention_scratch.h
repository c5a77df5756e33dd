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
  uint8_t* values;         // of a chunk, in the cache's form, if they are columns of the keys
  State segment, total;
  int64_t item = -1;  // the item of these queries, if segments are taken separately
  int asked = 0;      // blocks of the next chunk whose keys have been prefetched
};

// The sizes on which a thread's memory depends, padded to panels.
struct ScratchShape {
  int key_width = 0, value_width = 0;
  size_t value_bytes = 0;  // of a chunk's values, if they are columns of the keys

  static ScratchShape of(const KvGeometry& g) {
    return {g.key_width, g.value_width, g.values_in_keys ? size_t(kChunk) * size_t(g.value_width) * g.element_bytes() : 0};
  }
  ScratchShape joined(const ScratchShape& other) const {
    return {std::max(key_width, other.key_width), std::max(value_width, other.value_width), std::max(value_bytes, other.value_bytes)};
  }
  size_t query_bytes() const {
    return size_t(kAttentionRows) * kRowBytes * size_t((key_width + block_columns(Form::kF32) - 1) / block_columns(Form::kF32));
  }
  size_t state_bytes() const { return state_floats(kAttentionRows, value_width) * sizeof(float); }
  size_t bytes() const { return round_up(query_bytes() + 2 * kAttentionRows * kRowBytes + value_bytes + 2 * state_bytes(), 4096); }
};

inline Scratch scratch_at(uint8_t* memory, const ScratchShape& shape) {
  Scratch scratch;
  scratch.queries = memory;
  scratch.scores = reinterpret_cast<float*>(memory + shape.query_bytes());
  scratch.probabilities = memory + shape.query_bytes() + kAttentionRows * kRowBytes;
  scratch.values = scratch.probabilities + kAttentionRows * kRowBytes;
  uint8_t* const states = scratch.values + shape.value_bytes;
  scratch.segment = state_at(reinterpret_cast<float*>(states), kAttentionRows, shape.value_width);
  scratch.total = state_at(reinterpret_cast<float*>(states + shape.state_bytes()), kAttentionRows, shape.value_width);
  return scratch;
}

}  // namespace appl
