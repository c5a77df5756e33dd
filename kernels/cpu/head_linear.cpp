#include "head_linear.h"

#include <algorithm>
#include <vector>

#include "linear.h"
#include "weight.h"

namespace appl {
namespace {

float* row_of(const appl_span& span, int64_t row) { return span.data + size_t(row) * size_t(span.stride); }

// Copies the tail of each head behind the columns that its matrix computes.
void copy_tails(appl_pool& pool, const appl_head_linear& op, int rows) {
  const int columns = op.tail.width / op.num_heads, width = op.out.width / op.num_heads;
  parallel_for(pool, rows, op.tail.width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int head = 0; head < op.num_heads; ++head) {
        std::copy_n(row_of(op.tail, row) + head * columns, columns, row_of(op.out, row) + (head + 1) * width - columns);
      }
    }
  });
}

}  // namespace

HeadLinearShape head_linear_shape(const appl_head_linear& op, bool quantize_activations, int max_rows) {
  return {input_shape(*op.weight, quantize_activations), std::max(max_rows, std::min(max_rows * op.num_heads, kLeastHeadRows))};
}

void run_head_linear(appl_pool& pool, const appl_head_linear& op, const HeadLinearShape& shape, int rows, uint8_t* scratch) {
  if (rows == 0) return;
  const int columns = op.x.width / op.num_heads, width = op.out.width / op.num_heads, most = std::max(1, shape.max_pairs / rows);
  std::vector<appl_weight> weights;
  std::vector<LinearCall> calls;
  weights.reserve(size_t(std::min(most, op.num_heads)));
  for (int first = 0; first < op.num_heads; first += most) {
    const int count = std::min(most, op.num_heads - first);
    const Prepared inputs = prepare(pool, shape.input, count * rows, scratch,
                                    [&](int64_t pair, int) { return row_of(op.x, pair % rows) + (first + int(pair / rows)) * columns; });
    weights.clear();
    calls.clear();
    for (int i = 0; i < count; ++i) {
      appl_weight& own = weights.emplace_back(*op.weight);
      own.rows = op.weight->rows / op.num_heads;
      own.num_panels = own.rows / kPanel;
      own.data += size_t(first + i) * size_t(own.num_panels) * own.panel_bytes;
      calls.push_back({&own, rows_of(inputs, i * rows, rows), nullptr, op.out.data + (first + i) * width, op.out.stride, nullptr,
                       APPL_ACTIVATION_NONE, false});
    }
    run_linears(pool, calls);
  }
  if (op.tail.data != nullptr) copy_tails(pool, op, rows);
}

}  // namespace appl
