// The softmax of a row over a chunk of keys: masks its scores, and turns them into probabilities.
#pragma once

#include <algorithm>
#include <cmath>

#include "attention_parts.h"
#include "attention_scratch.h"
#include "kv_cache.h"
#include "memory.h"
#include "softmax.h"

namespace appl {

constexpr float kLog2E = 1.44269504088896341f;  // scores are to base 2, because exp2 is cheaper

class RowSoftmax {
 public:
  // form: of the probabilities, as tiles read them.
  RowSoftmax(const appl_attention& op, const KvGeometry& geometry, Form form) : op_(op), g_(geometry), form_(form) {}

  // The columns of a row's scores that it sees, rounded outward to whole vectors, and the largest score so far. If there are no columns,
  // the other fields are unset.
  struct Seen {
    int low = 0, high = 0;
    float maximum;
    bool is_nothing() const { return high == 0; }
  };

  // What positions add to a row's scores: `slope` for each key from the query's position on.
  struct Bias {
    float slope;
    int query;
  };

  // Sets the scores that a row does not see to minus infinity. `last` is the last position that the row sees of these keys. bias: null for
  // none. head: of the part, whose scales are those of the keys.
  Seen mask(int row, int head, int last, int first_block, int count, Scratch& scratch, const State& state, const Bias* bias) const {
    float* s = scratch.scores + size_t(row) * kChunk;
    const int first = first_seen(op_, last);
    const int begin = first > 0 ? std::max(0, column(first, first_block)) : 0;
    const int end = std::min(count * g_.slots, column(last, first_block) + 1);
    if (begin >= end) return {};
    const int low = begin / kWidth * kWidth, high = int(round_up(size_t(end), kWidth));
    if (g_.has_codes()) scale(s, low, high, scratch.key_scales + head * kChunk, scratch.query_factors + row);
    if (begin > low) keep_lanes(s + low, begin - low, kWidth);
    keep_lanes(s + high - kWidth, 0, end - (high - kWidth));
    mask_padding(s, count);
    if (bias != nullptr) add_bias(s, low, high, first_block, *bias);
    return {low, high, std::max(state.maximum[row], cap_and_find_maximum(s, low, high))};
  }

  // Turns a row's scores into probabilities relative to its new maximum, and rescales its sums so far. head: as in mask; probabilities are
  // multiplied with the scales of its values once they are summed.
  void normalize(int row, int head, const Seen& seen, int count, Scratch& scratch, const State& state) const {
    const float* s = scratch.scores + size_t(row) * kChunk;
    const int all = count * g_.slots, low = seen.low, high = seen.high;
    if (seen.is_nothing()) return put_probabilities(row, all, scratch, [&](auto out) { put_zeros(0, all, out); });
    const float* const scales = g_.has_codes() ? scratch.value_scales + head * kChunk : nullptr;
    const float maximum = seen.maximum;
    const bool is_first = state.maximum[row] == kMinusInfinity;  // nothing is summed yet
    const float correction = is_first ? 1.0f : std::exp2(state.maximum[row] - maximum);
    Floats sum{};
    put_probabilities(row, all, scratch, [&](auto out) {
      put_zeros(0, low, out);
      for_vectors(low, high, [&](int i) {
        const Floats p = out.exp2(load(s + i) - maximum);
        sum += p;
        out.put(i, scales == nullptr ? p : p * load(scales + i));
      });
      put_zeros(high, all, out);
    });
    state.sum[row] = state.sum[row] * correction + reduce_add(sum);
    state.maximum[row] = maximum;
    float* values = state.values + size_t(row) * size_t(g_.value_width);
    if (correction != 1.0f) map(values, g_.value_width, [correction](Floats v) { return v * correction; }, values);
  }

 private:
  // The column of the key at `position`, in the chunk that starts at first_block.
  int column(int position, int first_block) const {
    if (g_.slots == g_.block_size) return position - first_block * g_.slots;  // called for each row, so divisions would cost too much
    return (position / g_.block_size - first_block) * g_.slots + position % g_.block_size;
  }

  // Makes scores of sums of products with codes; those with int8 are int32.
  void scale(float* s, int low, int high, const float* scales, const float* factor) const {
    if (form_ != Form::kInt16) return for_vectors(low, high, [&](int i) { store(s + i, load(s + i) * load(scales + i)); });
    for_vectors(low, high, [&, factor = *factor](int i) { store(s + i, to_floats(load<Ints>(s + i)) * (load(scales + i) * factor)); });
  }

  void mask_padding(float* s, int count) const {
    if (g_.slots == g_.block_size) return;
    for (int b = 0; b < count; ++b) std::fill(s + b * g_.slots + g_.block_size, s + (b + 1) * g_.slots, kMinusInfinity);
  }

  // A vector of scores lies within one block, because blocks have a multiple of sixteen slots.
  void add_bias(float* s, int low, int high, int first_block, const Bias& bias) const {
    Floats lane;
    for (int i = 0; i < kWidth; ++i) lane[i] = float(i);
    const float slope = bias.slope * kLog2E;
    for (int i = low; i < high; i += kWidth) {
      const int position = (first_block + i / g_.slots) * g_.block_size + i % g_.slots;
      store(s + i, load(s + i) + slope * (lane + float(position - bias.query)));
    }
  }

  float cap_and_find_maximum(float* s, int low, int high) const {
    const float cap = op_.soft_cap, inverse = cap > 0 ? 1.0f / cap : 0.0f;
    const auto capped = [&](Floats v) { return v > kMinusInfinity ? cap * kLog2E * vtanh(v * inverse) : v; };
    if (cap > 0) for_vectors(low, high, [&](int i) { store(s + i, capped(load(s + i))); });
    Floats maximum = splat(kMinusInfinity);
    for_vectors(low, high, [&](int i) { maximum = vmax(load(s + i), maximum); });
    return reduce_max(maximum);
  }

  // Calls body(out), where `out` takes a row's probabilities in the form that tiles read; f32 overwrites the scores.
  template <class Body>
  void put_probabilities(int row, int all, const Scratch& scratch, Body&& body) const {
    float* const s = scratch.scores + size_t(row) * kChunk;
    uint8_t* const probabilities = scratch.probabilities + size_t(row) * kRowBytes;
    if (form_ == Form::kBf16) return body(Bf16Probabilities{reinterpret_cast<uint16_t*>(probabilities)});
    if (!g_.has_codes()) return body(FloatProbabilities<5>{s});
    body(FloatProbabilities<3>{s});
    if (form_ == Form::kInt16) scratch.value_factors[row] = put_words(s, all, kMostWord, reinterpret_cast<int16_t*>(probabilities));
  }

  const appl_attention& op_;
  const KvGeometry& g_;
  const Form form_;
};

}  // namespace appl
