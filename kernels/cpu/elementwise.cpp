#include "elementwise.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "activation.h"
#include "weight.h"

namespace appl {
namespace {

template <class Body>
void for_rows(appl_pool& pool, int rows, int width, Body&& body) {
  parallel_for(pool, rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

// sum(f(x[i])) over `count` floats; f(0) must be 0.
template <class F>
float sum_of(const float* x, int count, F&& f) {
  Floats first{}, second{};
  int i = 0;
  for (; i + 2 * kWidth <= count; i += 2 * kWidth) {
    first += f(load(x + i));
    second += f(load(x + i + kWidth));
  }
  float total = reduce_add(first + second);
  for (; i < count; ++i) total += f(splat(x[i]))[0];
  return total;
}

float rms_factor(const float* x, int count, float eps) { return 1.0f / std::sqrt(mean_of_squares(x, count) + eps); }

// out = x * factor * weight + bias; weight and bias may be NULL.
void scale_by(const float* x, const float* weight, const float* bias, float factor, int count, float* out) {
  if (weight == nullptr) map(out, count, [factor](Floats v) { return v * factor; }, x);
  else map(out, count, [factor](Floats v, Floats w) { return v * factor * w; }, x, weight);
  if (bias != nullptr) map(out, count, [](Floats v, Floats b) { return v + b; }, out, bias);
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, int count, float* out) {
  const float mean = sum_of(x, count, [](Floats v) { return v; }) / float(count);
  map(out, count, [mean](Floats v) { return v - mean; }, x);
  scale_by(out, weight, bias, rms_factor(out, count, eps), count, out);
}

// Adds x to the residual if there is one; returns the row to norm.
const float* residual_sum(const appl_norm& op, int64_t row) {
  const float* x = row_of(op.x, row);
  if (op.residual.data == nullptr) return x;
  float* sum = row_of(op.residual, row);
  const float scale = op.scale;
  map(sum, op.x.width, [scale](Floats a, Floats b) { return a + scale * b; }, sum, x);
  return sum;
}

void rotate_halves(float* head, const float* cosines, const float* sines, int half) {
  int i = 0;
  for (; i + kWidth <= half; i += kWidth) {
    const Floats a = load(head + i), b = load(head + half + i), c = load(cosines + i), s = load(sines + i);
    store(head + i, a * c - b * s);
    store(head + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cosines[i] - b * sines[i];
    head[half + i] = b * cosines[i] + a * sines[i];
  }
}

void rotate_pairs(float* head, const float* cosines, const float* sines, int half) {
  for (int i = 0; i < half; ++i) {
    const float a = head[2 * i], b = head[2 * i + 1];
    head[2 * i] = a * cosines[i] - b * sines[i];
    head[2 * i + 1] = b * cosines[i] + a * sines[i];
  }
}

}  // namespace

float mean_of_squares(const float* x, int count) {
  return sum_of(x, count, [](Floats v) { return v * v; }) / float(count);
}

int num_tokens(const appl_embed& op) { return op.num_tokens != 0 ? op.num_tokens : op.table->rows; }

const float* given_embedding(const appl_step& step, int64_t token) {
  if (step.embeds == nullptr || step.embed_of[token] < 0) return nullptr;
  return step.embeds + size_t(step.embed_of[token]) * size_t(step.embeds_width);
}

void run_embed(appl_pool& pool, const appl_embed& op, const appl_step& step) {
  for_rows(pool, step.num_tokens, op.out.width * 8, [&](int64_t row) {
    float* out = row_of(op.out, row);
    const int token = step.token_ids[row], own = (token < num_tokens(op) ? token : op.missing_row) - op.first_own;
    if (own < 0 || own >= op.table->rows) return;
    if (const float* const given = op.takes_given != 0 ? given_embedding(step, row) : nullptr) {
      map(out, op.out.width, [&op](Floats v) { return v * op.given_scale; }, given);
    } else {
      gather_row(*op.table, own, op.scale, out);
    }
    if (op.type_table != nullptr) {
      const int type = step.token_types == nullptr ? 0 : step.token_types[row];
      map(out, op.out.width, [](Floats a, Floats b) { return a + b; }, out, op.type_table + size_t(type) * size_t(op.out.width));
    }
    if (op.position_table == nullptr) return;
    std::vector<float> position(size_t(op.out.width));
    gather_row(*op.position_table, step.positions[row] + op.position_offset, 1.0f, position.data());
    map(out, op.out.width, [](Floats a, Floats b) { return a + b; }, out, position.data());
  });
}

void norm_row(int32_t kind, const appl_norm& op, int64_t row, float* out) {
  const float* x = residual_sum(op, row);
  const int width = op.x.width;
  if (kind == APPL_OP_LAYER_NORM) return layer_norm(x, op.weight, op.bias, op.eps, width, out);
  scale_by(x, op.weight, nullptr, rms_factor(x, width, op.eps), width, out);
}

void run_norm(appl_pool& pool, int32_t kind, const appl_norm& op, int rows) {
  for_rows(pool, rows, op.x.width, [&](int64_t row) { norm_row(kind, op, row, row_of(op.out, row)); });
}

void run_head_norm(appl_pool& pool, const appl_head_norm& op, int rows) {
  for_rows(pool, rows, op.x.width, [&](int64_t row) {
    const float* head = row_of(op.x, row);
    float* out = row_of(op.out, row);
    for (int h = 0; h < op.num_heads; ++h, head += op.head_dim, out += op.head_dim) {
      const size_t at = op.by_head != 0 ? size_t(h) * size_t(op.head_dim) : 0;
      const float* weight = op.weight == nullptr ? nullptr : op.weight + at;
      const float* bias = op.bias == nullptr ? nullptr : op.bias + at;
      if (op.is_layer_norm != 0) layer_norm(head, weight, bias, op.eps, op.head_dim, out);
      else scale_by(head, weight, bias, rms_factor(head, op.head_dim, op.eps), op.head_dim, out);
    }
  });
}

void run_activation(appl_pool& pool, const appl_pointwise& op, int rows) {
  const auto run = [&](auto f) {
    for_rows(pool, rows, op.x.width * 4, [&](int64_t row) { map(row_of(op.out, row), op.x.width, f, row_of(op.x, row)); });
  };
  if (op.activation == APPL_ACTIVATION_XIELU) run(Xielu(op.parameters));
  else with_activation(op.activation, run);
}

void run_gated_activation(appl_pool& pool, const appl_gated& op, int rows) {
  with_activation(op.activation, [&](auto f) {
    for_rows(pool, rows, op.gate.width * 4, [&](int64_t row) {
      map(row_of(op.out, row), op.gate.width, [&](Floats gate, Floats up) { return f(gate) * up; }, row_of(op.gate, row),
          row_of(op.up, row));
    });
  });
}

void run_rope(appl_pool& pool, const appl_rope& op, const appl_step& step) {
  const int half = op.rotary_dim / 2;
  for_rows(pool, step.num_tokens, op.x.width, [&](int64_t row) {
    const float* cosines = op.table + size_t(step.positions[row]) * size_t(op.rotary_dim);
    float* head = row_of(op.x, row);
    for (int h = 0; h < op.num_heads; ++h, head += op.head_dim) {
      if (op.interleaved) rotate_pairs(head, cosines, cosines + half, half);
      else rotate_halves(head, cosines, cosines + half, half);
    }
  });
}

void run_add(appl_pool& pool, const appl_move& op, int rows) {
  for_rows(pool, rows, op.x.width, [&](int64_t row) {
    float* out = row_of(op.out, row);
    map(out, op.x.width, [](Floats a, Floats b) { return a + b; }, out, row_of(op.x, row));
  });
}

void run_copy(appl_pool& pool, const appl_move& op, int rows) {
  for_rows(pool, rows, op.x.width,
           [&](int64_t row) { std::memcpy(row_of(op.out, row), row_of(op.x, row), size_t(op.x.width) * sizeof(float)); });
}

void run_gated_add(appl_pool& pool, const appl_gated_add& op, int rows) {
  for_rows(pool, rows, op.out.width, [&](int64_t row) {
    float* out = row_of(op.out, row);
    const float factor = vsigmoid(splat(*row_of(op.gate, row)))[0];
    map(out, op.out.width, [factor](Floats a, Floats b) { return a + factor * b; }, out, row_of(op.x, row));
  });
}

void run_scale_by_position(appl_pool& pool, const appl_position_scale& op, const appl_step& step) {
  for_rows(pool, step.num_tokens, op.x.width, [&](int64_t row) {
    const float steps = float((step.positions[row] + op.offset) / op.length);
    const float factor = 1.0f + op.scale * std::log1p(steps);
    float* x = row_of(op.x, row);
    map(x, op.x.width, [factor](Floats v) { return v * factor; }, x);
  });
}

void run_gather_rows(appl_pool& pool, const appl_move& op, const appl_step& step) {
  for_rows(pool, step.num_sampled, op.x.width, [&](int64_t row) {
    std::memcpy(row_of(op.out, row), row_of(op.x, step.sampled_rows[row]), size_t(op.x.width) * sizeof(float));
  });
}

void run_scale(appl_pool& pool, const appl_factor& op, int rows) {
  const float factor = op.factor;
  for_rows(pool, rows, op.x.width, [&](int64_t row) {
    float* x = row_of(op.x, row);
    map(x, op.x.width, [factor](Floats v) { return v * factor; }, x);
  });
}

void run_mean_rows(appl_pool& pool, const appl_move& op, const appl_step& step) {
  const int width = op.x.width;
  const int32_t* const starts_end = step.query_start + step.num_seqs + 1;
  for_rows(pool, step.num_sampled, width * 16, [&](int64_t row) {
    const int32_t* const end = std::upper_bound(step.query_start, starts_end, step.sampled_rows[row]);
    float* out = row_of(op.out, row);
    std::memcpy(out, row_of(op.x, end[-1]), size_t(width) * sizeof(float));
    for (int32_t t = end[-1] + 1; t < *end; ++t) map(out, width, [](Floats a, Floats b) { return a + b; }, out, row_of(op.x, t));
    const float factor = 1.0f / float(*end - end[-1]);
    map(out, width, [factor](Floats v) { return v * factor; }, out);
  });
}

void run_soft_cap(appl_pool& pool, const appl_soft_cap& op, int rows) {
  const float cap = op.cap, inverse = 1.0f / op.cap;
  for_rows(pool, rows, op.x.width * 4, [&](int64_t row) {
    float* x = row_of(op.x, row);
    map(x, op.x.width, [=](Floats v) { return cap * vtanh(v * inverse); }, x);
  });
}

void run_scale_by_weight(appl_pool& pool, const appl_weight_scale& op, int rows) {
  const float factor = op.weight[0];
  for_rows(pool, rows, op.x.width, [&](int64_t row) {
    const float* x = row_of(op.x, row);
    float* out = row_of(op.out, row);
    if (op.is_one != 0) map(out, op.x.width, [factor](Floats v) { return v * factor; }, x);
    else map(out, op.x.width, [](Floats v, Floats w) { return v * w; }, x, op.weight);
  });
}

void run_gaussian_top_k(appl_pool& pool, const appl_top_k& op, int rows) {
  const int width = op.x.width;
  for_rows(pool, rows, width * 3, [&](int64_t row) {
    float* x = row_of(op.x, row);
    const float mean = sum_of(x, width, [](Floats v) { return v; }) / float(width);
    map(x, width, [mean](Floats v) { return v - mean; }, x);
    const float cut = op.num_deviations * std::sqrt(mean_of_squares(x, width));
    map(x, width, [cut](Floats v) { return vmax(splat(0.0f), v - cut); }, x);
  });
}

}  // namespace appl
