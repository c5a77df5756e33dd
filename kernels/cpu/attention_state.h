// The online softmax: the state of rows of queries after some keys, and the folding of two states.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "activation.h"

namespace appl {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The state of some rows after some keys; `values` are not divided by the sum yet. Scores and maxima are logarithms to base 2.
struct State {
  float *maximum, *sum, *values;  // [rows], [rows], [rows][width]
};

inline size_t state_floats(int rows, int width) { return size_t(rows) * size_t(width + 2); }

inline State state_at(float* memory, int rows, int width) {
  float* values = memory;  // first, for its alignment
  return {values + size_t(rows) * size_t(width), values + size_t(rows) * size_t(width + 1), values};
}

// Folds row `row` of `more` into `total`; `factor` is 2^-|difference of their maxima|.
inline void fold_row(const State& total, const State& more, int row, int width, float factor) {
  const float newer = more.maximum[row], older = total.maximum[row];
  if (newer == kMinusInfinity) return;
  float* to = total.values + size_t(row) * size_t(width);
  const float* from = more.values + size_t(row) * size_t(width);
  if (older == kMinusInfinity) {
    std::copy_n(from, width, to);
    total.sum[row] = more.sum[row];
  } else if (newer > older) {
    map(to, width, [factor](Floats v, Floats w) { return factor * v + w; }, to, from);
    total.sum[row] = factor * total.sum[row] + more.sum[row];
  } else {
    map(to, width, [factor](Floats v, Floats w) { return v + factor * w; }, to, from);
    total.sum[row] += factor * more.sum[row];
  }
  total.maximum[row] = std::max(newer, older);
}

// Folds all rows. It is never inlined, so that all callers round alike.
[[gnu::noinline]] inline void fold(const State& total, const State& more, int rows, int width) {
  for (int first = 0; first < rows; first += kWidth) {
    const int count = std::min(kWidth, rows - first);
    alignas(64) float factors[kWidth] = {};
    for (int i = 0; i < count; ++i) factors[i] = -std::abs(total.maximum[first + i] - more.maximum[first + i]);
    store(factors, vexp2<5>(load(factors)));
    for (int i = 0; i < count; ++i) fold_row(total, more, first + i, width, factors[i]);
  }
}

}  // namespace appl
