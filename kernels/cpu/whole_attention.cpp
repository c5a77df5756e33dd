#include "whole_attention.h"

#include <algorithm>
#include <cstring>

#include "activation.h"
#include "memory.h"
#include "simd.h"

namespace appl {
namespace {

constexpr int kRows = 6;                           // queries of a tile
constexpr int kKeyVectors = kWidth == 16 ? 4 : 2;  // of keys in a tile of scores
constexpr int kKeyStep = kKeyVectors * kWidth;
constexpr int kValueStep = 2 * kWidth;
constexpr int kKeyPadding = 64, kValuePadding = 32;  // the largest steps of any level: sizes are the same at all
static_assert(kKeyPadding % kKeyStep == 0 && kValuePadding % kValueStep == 0);
constexpr float kLog2E = 1.44269504088896341f;
const float kMinusInfinity = -INFINITY;

// A thread's memory for one head of one sequence: keys by column, values by row, both padded with zeros.
struct Scratch {
  int stride, value_width;  // of the keys' columns and the scores' rows; of a value
  float *keys, *values, *scores, *queries;

  Scratch(float* memory, int length, int head_dim)
      : stride(int(round_up(size_t(length), kKeyPadding))), value_width(int(round_up(size_t(head_dim), kValuePadding))) {
    keys = memory;
    values = keys + size_t(head_dim) * size_t(stride);
    scores = values + size_t(length) * size_t(value_width);
    queries = scores + size_t(kRows) * size_t(stride);
  }

  static size_t floats(int length, int head_dim) {
    const Scratch whole(nullptr, length, head_dim);
    return size_t(whole.stride) * size_t(head_dim + kRows) + size_t(length) * size_t(whole.value_width) + size_t(kRows * head_dim);
  }
};

// One head of one sequence: rows begin at the sequence's first token.
struct Head {
  const float *q, *k, *v, *bias;  // bias: of the key as far behind the query as bias_reach - 1; null for none
  float* out;
  int length, q_stride, k_stride, v_stride, out_stride;
};

const float* row_of(const appl_span& span, int64_t row) { return span.data + size_t(row) * size_t(span.stride); }

Head head_of(const appl_whole_attention& op, const appl_step& step, int sequence, int head) {
  const int first = step.query_start[sequence], kv_head = head / (op.num_heads / op.num_kv_heads);
  const float* const bias = op.bias == nullptr ? nullptr : op.bias + size_t(head) * size_t(2 * op.bias_reach - 1);
  const size_t at = size_t(head) * size_t(op.head_dim), kv_at = size_t(kv_head) * size_t(op.head_dim);
  return {row_of(op.q, first) + at,
          row_of(op.k, first) + kv_at,
          row_of(op.v, first) + kv_at,
          bias,
          const_cast<float*>(row_of(op.out, first)) + at,
          step.query_start[sequence + 1] - first,
          op.q.stride,
          op.k.stride,
          op.v.stride,
          op.out.stride};
}

void pack(const Head& head, int head_dim, const Scratch& to) {
  for (int d = 0; d < head_dim; ++d) {
    float* const column = to.keys + size_t(d) * size_t(to.stride);
    for (int j = 0; j < head.length; ++j) column[j] = head.k[size_t(j) * size_t(head.k_stride) + size_t(d)];
    std::fill(column + head.length, column + to.stride, 0.0f);
  }
  for (int j = 0; j < head.length; ++j) {
    float* const value = to.values + size_t(j) * size_t(to.value_width);
    std::memcpy(value, head.v + size_t(j) * size_t(head.v_stride), size_t(head_dim) * sizeof(float));
    std::fill(value + head_dim, value + to.value_width, 0.0f);
  }
}

// scores[r][j] = queries[r] . keys[j] for j in [begin, end), a multiple of kKeyStep.
void score(const Scratch& at, int head_dim, int begin, int end) {
  for (int j = begin; j < end; j += kKeyStep) {
    Floats sums[kRows][kKeyVectors]{};
    for (int d = 0; d < head_dim; ++d) {
      const float* const column = at.keys + size_t(d) * size_t(at.stride) + j;
      Floats keys[kKeyVectors];
#pragma GCC unroll 4
      for (int i = 0; i < kKeyVectors; ++i) keys[i] = load(column + i * kWidth);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const Floats query = splat(at.queries[r * head_dim + d]);
#pragma GCC unroll 4
        for (int i = 0; i < kKeyVectors; ++i) sums[r][i] = multiply_add(sums[r][i], query, keys[i]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kKeyVectors; ++i) store(at.scores + size_t(r) * size_t(at.stride) + j + i * kWidth, sums[r][i]);
    }
  }
}

// Turns the scores of keys [first, last) within [begin, end) into weights, the others into 0; returns the sum of the weights. Scores are
// in powers of two.
float weigh(float* scores, int first, int last, int begin, int end) {
  std::fill(scores + begin, scores + first, kMinusInfinity);
  std::fill(scores + last, scores + end, kMinusInfinity);
  Floats largest = splat(kMinusInfinity), sum{};
  for (int j = begin; j < end; j += kWidth) largest = vmax(load(scores + j), largest);
  const Floats most = splat(reduce_max(largest));
  for (int j = begin; j < end; j += kWidth) {
    const Floats weight = vexp2<5>(load(scores + j) - most);
    store(scores + j, weight);
    sum += weight;
  }
  return reduce_add(sum);
}

// out[r] = sum of scores[r][j] * values[j] / sums[r], for `rows` rows.
void mix(const Scratch& at, const Head& head, int head_dim, int first_row, int rows, int begin, int end, const float* sums) {
  end = std::min(end, head.length);
  for (int c = 0; c < at.value_width; c += kValueStep) {
    Floats mixed[kRows][2]{};
    for (int j = begin; j < end; ++j) {
      const float* const value = at.values + size_t(j) * size_t(at.value_width) + c;
      const Floats low = load(value), high = load(value + kWidth);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const Floats weight = splat(at.scores[size_t(r) * size_t(at.stride) + size_t(j)]);
        mixed[r][0] = multiply_add(mixed[r][0], weight, low);
        mixed[r][1] = multiply_add(mixed[r][1], weight, high);
      }
    }
    const size_t bytes = size_t(std::min(kValueStep, head_dim - c)) * sizeof(float);
    for (int r = 0; r < rows; ++r) {
      const Floats factor = splat(1.0f / sums[r]);
      const Floats result[2] = {mixed[r][0] * factor, mixed[r][1] * factor};
      std::memcpy(head.out + size_t(first_row + r) * size_t(head.out_stride) + c, result, bytes);
    }
    if (c + kValueStep >= head_dim) break;
  }
}

void attend(const appl_whole_attention& op, const Head& head, const Scratch& at) {
  const int length = head.length, before = op.before < 0 ? length : op.before, after = op.after < 0 ? length : op.after;
  pack(head, op.head_dim, at);
  for (int first = 0; first < length; first += kRows) {
    const int rows = std::min(kRows, length - first);
    const int begin = std::max(0, first - before) / kKeyStep * kKeyStep;
    const int end = int(round_up(size_t(std::min(int64_t{length}, int64_t{first} + rows + after)), kKeyStep));
    for (int r = 0; r < kRows; ++r) {
      const float* const query = head.q + size_t(first + std::min(r, rows - 1)) * size_t(head.q_stride);
      map(at.queries + r * op.head_dim, op.head_dim, [&](Floats v) { return v * (op.scale * kLog2E); }, query);
    }
    score(at, op.head_dim, begin, end);
    float sums[kRows];
    for (int r = 0; r < rows; ++r) {
      const int i = first + r;
      float* const scores = at.scores + size_t(r) * size_t(at.stride);
      const int low = std::max(0, i - before), high = int(std::min(int64_t{length}, int64_t{i} + after + 1));
      if (head.bias != nullptr) {
        const float* const bias = head.bias + (op.bias_reach - 1 - i) + low;
        map(scores + low, high - low, [](Floats s, Floats b) { return s + b * kLog2E; }, scores + low, bias);
      }
      sums[r] = weigh(scores, low, high, begin, end);
    }
    mix(at, head, op.head_dim, first, rows, begin, end, sums);
  }
}

}  // namespace

size_t whole_attention_bytes(const appl_whole_attention& op, int longest) {
  return round_up(Scratch::floats(longest, op.head_dim) * sizeof(float), 64);
}

void run_whole_attention(appl_pool& pool, const appl_whole_attention& op, const appl_step& step, float* scratch) {
  int longest = 0;
  for (int s = 0; s < step.num_seqs; ++s) longest = std::max(longest, step.query_start[s + 1] - step.query_start[s]);
  const size_t floats = whole_attention_bytes(op, longest) / sizeof(float);
  const int64_t work = int64_t{step.num_tokens} / std::max(1, step.num_seqs) * longest * op.head_dim;
  parallel_shares(pool, int64_t{step.num_seqs} * op.num_heads, work, [&](int64_t item, int thread, bool) {
    const Head head = head_of(op, step, int(item / op.num_heads), int(item % op.num_heads));
    if (head.length > 0) attend(op, head, Scratch(scratch + size_t(thread) * floats, head.length, op.head_dim));
  });
}

}  // namespace appl
