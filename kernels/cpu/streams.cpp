#include "streams.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "activation.h"
#include "elementwise.h"

namespace appl {
namespace {

constexpr int kBlock = 256;  // columns of all streams that fit the first cache

template <class Body>
void for_blocks(appl_pool& pool, const appl_streams& op, int rows, Body&& body) {
  const int width = op.streams[0].width;
  parallel_for(pool, rows, int64_t{width} * op.num_streams, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int column = 0; column < width; column += kBlock) body(row, column, std::min(kBlock, width - column));
    }
  });
}

void add_times(float* out, const float* x, float factor, int count) {
  map(out, count, [factor](Floats a, Floats b) { return a + factor * b; }, out, x);
}

}  // namespace

void run_mix_streams(appl_pool& pool, const appl_streams& op, int rows) {
  for_blocks(pool, op, rows, [&](int64_t row, int column, int count) {
    alignas(64) float before[APPL_MAX_STREAMS][kBlock];
    const float* coefficients = row_of(op.coefficients, row);
    for (int i = 0; i < op.num_streams; ++i) std::memcpy(before[i], row_of(op.streams[i], row) + column, size_t(count) * sizeof(float));
    for (int j = 0; j < op.num_streams; ++j) {
      float* stream = row_of(op.streams[j], row) + column;
      for (int i = 0; i < op.num_streams; ++i) add_times(stream, before[i], coefficients[j * op.num_streams + i], count);
    }
  });
}

void run_correct_streams(appl_pool& pool, const appl_streams& op, int rows) {
  for_blocks(pool, op, rows, [&](int64_t row, int column, int count) {
    alignas(64) float change[kBlock];
    const float* coefficients = row_of(op.coefficients, row);
    map(change, count, [](Floats a, Floats b) { return a - b; }, row_of(op.target, row) + column, row_of(op.streams[0], row) + column);
    for (int j = 0; j < op.num_streams; ++j) add_times(row_of(op.streams[j], row) + column, change, 1.0f + coefficients[j], count);
  });
}

void run_match_magnitude(appl_pool& pool, const appl_magnitude& op, int rows) {
  const int width = op.x.width;
  parallel_for(pool, rows, int64_t{width} * 2, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* x = row_of(op.x, row);
      const float wanted = mean_of_squares(row_of(op.reference, row), width);
      const float factor = std::sqrt(wanted / std::max(mean_of_squares(x, width), op.least));
      map(x, width, [factor](Floats v) { return v * factor; }, x);
    }
  });
}

}  // namespace appl
