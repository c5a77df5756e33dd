// What attention does for caches of codes (kv_codes.h) beside what it does for those of floats.
#pragma once

#include <algorithm>
#include <climits>

#include "attention_scratch.h"
#include "kv_cache.h"
#include "softmax.h"

namespace appl {

// Prefetches the scales of some heads of a block.
inline void ask_for_scales(const KvLayer& layer, int block, int first_head, int heads) {
  const KvGeometry& g = layer.geometry;
  const auto ask_for = [&](const float* scales) {
    for (int i = 0; i < heads * g.slots; i += kPanel) __builtin_prefetch(scales + i);
  };
  ask_for(layer.key_scales(block, first_head));
  if (!g.values_in_keys) ask_for(layer.value_scales(block, first_head));
}

// Loads the scales of a head's slots in a block, times the root of the codes' unit, to slot `at` of a head of the chunk.
inline void load_scales(const KvLayer& layer, int block, int head, size_t at, const Scratch& scratch) {
  const auto scaled = [root = root_of_unit(layer.geometry.layout)](Floats v) { return v * root; };
  map(scratch.key_scales + at, layer.geometry.slots, scaled, layer.key_scales(block, head));
  map(scratch.value_scales + at, layer.geometry.slots, scaled, layer.value_scales(block, head));
}

// Converts a query to words for keys of int8: turned as these are, and so small that sums of products with codes fit 32 bits. `index` is
// its row. Scores and probabilities, which are not needed yet, hold the row meanwhile.
inline void put_turned_query(const KvGeometry& g, const float* q, float scale, int index, Scratch& scratch) {
  float* const turned = scratch.scores;
  map(turned, g.key_dim, [scale](Floats v) { return v * scale; }, q);
  std::fill(turned + g.key_dim, turned + g.key_width, 0.0f);
  turn(turned, g.key_width, turned_keys(g.layout, g.key_dim));
  int16_t* const words = reinterpret_cast<int16_t*>(scratch.probabilities);
  const int most = std::min(kMostWord, INT_MAX / (int(largest_code(APPL_INT8)) * g.key_width));
  scratch.query_factors[index] = put_words(turned, g.key_width, most, words);
  const int columns = block_columns(Form::kInt16);
  for (int first = 0; first < g.key_width; first += columns) {
    uint8_t* const to = scratch.queries + (size_t(first / columns) * kAttentionRows + size_t(index)) * kRowBytes;
    std::copy_n(words + first, std::min(columns, g.key_width - first), reinterpret_cast<int16_t*>(to));
  }
}

// Adds a row's int32 sums of a chunk's values to those before, or takes their place if there are none.
inline void add_sums(int row, int width, const Scratch& scratch, const State& state, bool adds) {
  float* const values = state.values + size_t(row) * size_t(width);
  const float* const sums = scratch.sums + size_t(row) * size_t(width);
  if (!adds) std::fill_n(values, width, 0.0f);
  const auto add = [factor = scratch.value_factors[row]](Floats v, Floats sum) { return v + factor * to_floats(bit_cast<Ints>(sum)); };
  map(values, width, add, values, sums);
}

}  // namespace appl
