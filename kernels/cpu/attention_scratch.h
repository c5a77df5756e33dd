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
  // Of a cache of codes: the scales of a chunk's slots, [heads of a part][kChunk], times the root of the codes' unit.
  float *key_scales, *value_scales;
  // Of int8 codes: what a row's queries and its probabilities are multiplied with to be numbers, [kAttentionRows]; and its sums of a
  // chunk's values, [kAttentionRows][value_width].
  float *query_factors, *value_factors, *sums;
  State segment, total;
  int64_t item = -1;  // the item of these queries, if segments are taken separately
  int asked = 0;      // blocks of the next chunk whose keys have been prefetched
};

// The sizes on which a thread's memory depends, padded to panels.
struct ScratchShape {
  int key_width = 0, value_width = 0;
  size_t value_bytes = 0;  // of a chunk's values, if they are columns of the keys
  int scaled_heads = 0;    // of a part, in a cache of codes
  bool has_sums = false;   // of int8

  static ScratchShape of(const KvGeometry& g) {
    ScratchShape shape{g.key_width, g.value_width};
    if (g.values_in_keys) shape.value_bytes = size_t(kChunk) * size_t(g.value_width) * g.element_bytes();
    if (g.has_codes()) shape.scaled_heads = std::min(g.num_kv_heads, kAttentionRows);
    shape.has_sums = g.layout == APPL_INT8;
    return shape;
  }
  ScratchShape joined(const ScratchShape& other) const {
    return {std::max(key_width, other.key_width), std::max(value_width, other.value_width), std::max(value_bytes, other.value_bytes),
            std::max(scaled_heads, other.scaled_heads), has_sums || other.has_sums};
  }
  size_t query_bytes() const {
    return size_t(kAttentionRows) * kRowBytes * size_t((key_width + block_columns(Form::kF32) - 1) / block_columns(Form::kF32));
  }
  size_t state_bytes() const { return state_floats(kAttentionRows, value_width) * sizeof(float); }
  size_t scale_floats() const { return size_t(scaled_heads) * kChunk; }  // of keys, and again of values
  size_t sum_floats() const { return has_sums ? size_t(kAttentionRows) * size_t(value_width) : 0; }
  size_t factor_floats() const { return has_sums ? kAttentionRows : 0; }  // of queries, and again of values
  size_t code_bytes() const { return (2 * scale_floats() + sum_floats() + 2 * factor_floats()) * sizeof(float); }
  size_t bytes() const {
    return round_up(query_bytes() + 2 * kAttentionRows * kRowBytes + value_bytes + code_bytes() + 2 * state_bytes(), 4096);
  }
};

inline Scratch scratch_at(uint8_t* memory, const ScratchShape& shape) {
  Scratch scratch;
  scratch.queries = memory;
  scratch.scores = reinterpret_cast<float*>(memory + shape.query_bytes());
  scratch.probabilities = memory + shape.query_bytes() + kAttentionRows * kRowBytes;
  scratch.values = scratch.probabilities + kAttentionRows * kRowBytes;
  scratch.key_scales = reinterpret_cast<float*>(scratch.values + shape.value_bytes);
  scratch.value_scales = scratch.key_scales + shape.scale_floats();
  scratch.sums = scratch.value_scales + shape.scale_floats();
  scratch.query_factors = scratch.sums + shape.sum_floats();
  scratch.value_factors = scratch.query_factors + shape.factor_floats();
  uint8_t* const states = scratch.values + shape.value_bytes + shape.code_bytes();
  scratch.segment = state_at(reinterpret_cast<float*>(states), kAttentionRows, shape.value_width);
  scratch.total = state_at(reinterpret_cast<float*>(states + shape.state_bytes()), kAttentionRows, shape.value_width);
  return scratch;
}

}  // namespace appl
