// The online softmax: what is known of rows of queries after some keys, and how two such are put together.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "activation.h"

namespace appl {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// What is known of some rows after some keys; `values` are not divided by the sum yet. Scores and their maxima are logarithms to base 2.
struct State {
  float *maximum, *sum, *values;  // [rows], [rows], [rows][width]
};

inline size_t state_floats(int rows, int width) { return size_t(rows) * size_t(width + 2); }

inline State state_at(float* memory, int rows, int width) {
  float* values = memory;  // first, for its alignment
  return {values + size_t(rows) * size_t(width), values + size_t(rows) * size_t(width + 1), values};
}

// Row `row` of `total` after the keys of `more`, too. One function, so that all who fold round alike.
[[gnu::noinline]] inline void fold(const State& total, const State& more, int row, int width) {
  const float newer = more.maximum[row], older = total.maximum[row];
  if (newer == kMinusInfinity) return;
  float* to = total.values + size_t(row) * size_t(width);
  const float* from = more.values + size_t(row) * size_t(width);
  const float maximum = std::max(newer, older);
  if (older == kMinusInfinity) {
    std::copy_n(from, width, to);
    total.sum[row] = more.sum[row];
  } else {
    const float a = std::exp2(older - maximum), b = std::exp2(newer - maximum);
    map(to, width, [a, b](Floats v, Floats w) { return a * v + b * w; }, to, from);
    total.sum[row] = a * total.sum[row] + b * more.sum[row];
  }
  total.maximum[row] = maximum;
}

}  // namespace appl
