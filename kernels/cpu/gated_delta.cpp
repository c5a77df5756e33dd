// The gated delta rule; see appliance.program.states.GatedDelta.
//
// With the factors of a token, S' = g S + k u^T, where u = (v - S^T (g k)) * gain, and its output is S'^T q = S^T (g q) + (k q) u. So both
// products read the state before the token, and one pass over it takes a token in and reads it for the next token.
#include "activation.h"
#include "memory.h"
#include "states.h"

namespace appl {
namespace {

constexpr int kTokens = 32;                     // whose factors are made together
constexpr int kVectors = kWidth == 16 ? 4 : 2;  // of a tile's values: sums of products, and what is written, stay in registers
constexpr int kColumns = kVectors * kWidth;
constexpr int kAhead = 4;      // tokens between asking for a row and reading it
constexpr int kFewTokens = 4;  // for which a tile is not moved
constexpr float kNormEps = 1e-6f;

struct Sizes {
  int key_dim, value_dim, padded;  // padded: of a row of factors
  explicit Sizes(const appl_gated_delta& op)
      : key_dim(op.k.width / op.num_key_heads), value_dim(op.v.width / op.num_value_heads),
        padded(int(round_up(size_t(op.k.width / op.num_key_heads), 16))) {}
};

// The factors of a block of tokens for one head.
class Factors {
 public:
  Factors(const appl_gated_delta& op, int head, float* memory)
      : op_(op), sizes_(op), head_(head), key_head_(head / (op.num_value_heads / op.num_key_heads)), memory_(memory),
        rate_(std::exp(op.a_log[head])) {}

  static size_t floats(const Sizes& sizes) { return size_t(kTokens) * size_t(4 * sizes.padded + 3); }

  const float* keys(int token) const { return row(0, token); }             // k
  const float* decayed_keys(int token) const { return row(1, token); }     // g k
  const float* decayed_queries(int token) const { return row(2, token); }  // g q
  const float* decays(int token) const { return row(3, token); }           // g by channel
  float decay(int token) const { return numbers()[token]; }                // g by head
  float gain(int token) const { return numbers()[kTokens + token]; }
  float key_query(int token) const { return numbers()[2 * kTokens + token]; }  // k q

  void make(int begin, int count) {
    for (int t = 0; t < count; ++t) make_numbers(begin + t, t);
    log_decays_to_decays(count);
    for (int t = 0; t < count; ++t) {
      if (t + kAhead < count) ask_for_rows(begin + t + kAhead);
      make_rows(begin + t, t);
    }
  }

 private:
  float* row(int kind, int token) const { return memory_ + size_t(kind * kTokens + token) * size_t(sizes_.padded); }
  float* numbers() const { return memory_ + size_t(4 * kTokens) * size_t(sizes_.padded); }

  Floats decay_of(Floats drive) const { return vexp(-rate_ * softplus(drive)); }

  void make_numbers(int token, int t) {
    numbers()[kTokens + t] = span_row(op_.beta, token)[head_];
    if (op_.by_channel == 0) numbers()[t] = span_row(op_.decay, token)[head_] + op_.dt_bias[head_];
  }

  void log_decays_to_decays(int count) {
    const float scale = op_.beta_scale;
    float* const gains = numbers() + kTokens;
    map(gains, count, [scale](Floats beta) { return scale * vsigmoid(beta); }, gains);
    if (op_.by_channel == 0) map(numbers(), count, [this](Floats drive) { return decay_of(drive); }, numbers());
  }

  // The rows of a step are far apart, so they are asked for before their turn.
  void ask_for_rows(int token) const {
    const int count = sizes_.key_dim;
    ask_for(span_row(op_.k, token) + key_head_ * count, count);
    ask_for(span_row(op_.q, token) + key_head_ * count, count);
    if (op_.by_channel != 0) ask_for(span_row(op_.decay, token) + head_ * count, count);
  }

  void make_rows(int token, int t) {
    const int count = sizes_.key_dim;
    float *const keys = row(0, t), *const decayed_keys = row(1, t), *const queries = row(2, t), *const decays = row(3, t);
    unit(span_row(op_.k, token) + key_head_ * count, 1.0f, keys);
    unit(span_row(op_.q, token) + key_head_ * count, 1.0f / std::sqrt(float(count)), queries);
    numbers()[2 * kTokens + t] = dot(keys, queries);
    const auto multiply = [](Floats a, Floats b) { return a * b; };
    if (op_.by_channel == 0) {
      const float g = decay(t);
      map(decayed_keys, count, [g](Floats a) { return a * g; }, keys);
      map(queries, count, [g](Floats a) { return a * g; }, queries);
    } else {
      const size_t at = size_t(head_) * size_t(count);
      map(decays, count, [this](Floats a, Floats bias) { return decay_of(a + bias); }, span_row(op_.decay, token) + at, op_.dt_bias + at);
      map(decayed_keys, count, multiply, keys, decays);
      map(queries, count, multiply, queries, decays);
    }
  }

  static const float* span_row(const appl_span& span, int row) { return span.data + size_t(row) * size_t(span.stride); }

  // out = x * scale / sqrt(sum of squares + eps).
  void unit(const float* x, float scale, float* out) const {
    const float factor = scale / std::sqrt(dot(x, x) + kNormEps);
    map(out, sizes_.key_dim, [factor](Floats v) { return v * factor; }, x);
  }

  float dot(const float* a, const float* b) const {
    Floats sum{};
    for (int i = 0; i < sizes_.key_dim; i += kWidth) {
      const int count = sizes_.key_dim - i;
      sum = multiply_add(sum, load_first(a + i, count), load_first(b + i, count));
    }
    return reduce_add(sum);
  }

  const appl_gated_delta& op_;
  const Sizes sizes_;
  const int head_, key_head_;
  float* const memory_;
  const float rate_;
};

// Columns of a head's state, and what a token adds to them.
struct Tile {
  float* state;
  size_t stride;
  int key_dim;
  Floats added[kVectors];                 // u
  Floats found[kVectors], got[kVectors];  // S^T (g k), S^T (g q)

  // Takes token `before` in, and reads the state for token `next`.
  template <bool ByChannel, bool TakesIn, bool Reads>
  __attribute__((noinline)) void pass(const Factors& factors, int before, int next) {
    const float *const keys = factors.keys(before), *const decays = factors.decays(before);
    const float *const decayed_keys = factors.decayed_keys(next), *const decayed_queries = factors.decayed_queries(next);
    const Floats decay = splat(factors.decay(before));
    Floats u[kVectors], k_sums[kVectors]{}, q_sums[kVectors]{};
    for (int v = 0; v < kVectors; ++v) u[v] = added[v];
    float* row = state;  // copies in registers: the compiler cannot know that rows are not members
    const size_t step = stride;
    for (int i = 0, count = key_dim; i < count; ++i, row += step) {
      const Floats g = ByChannel && TakesIn ? splat(decays[i]) : decay;
      const Floats k = TakesIn ? splat(keys[i]) : Floats{};
      const Floats gk = Reads ? splat(decayed_keys[i]) : Floats{}, gq = Reads ? splat(decayed_queries[i]) : Floats{};
      Floats s[kVectors];
      for (int v = 0; v < kVectors; ++v) s[v] = load(row + v * kWidth);
      if constexpr (TakesIn) {
        for (int v = 0; v < kVectors; ++v) s[v] = multiply_add(s[v] * g, k, u[v]);
        for (int v = 0; v < kVectors; ++v) store(row + v * kWidth, s[v]);
      }
      if constexpr (Reads) {
        for (int v = 0; v < kVectors; ++v) k_sums[v] = multiply_add(k_sums[v], s[v], gk);
        for (int v = 0; v < kVectors; ++v) q_sums[v] = multiply_add(q_sums[v], s[v], gq);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      found[v] = k_sums[v];
      got[v] = q_sums[v];
    }
  }

  // From the sums of token t: its output, and what it adds.
  void finish(const Factors& factors, int t, const float* values, float* out, int width) {
    const float gain = factors.gain(t), key_query = factors.key_query(t);
    for (int v = 0; v < kVectors && v * kWidth < width; ++v) {
      added[v] = (load_first(values + v * kWidth, width - v * kWidth) - found[v]) * gain;
      store_first(out + v * kWidth, multiply_add(got[v], added[v], splat(key_query)), width - v * kWidth);
    }
  }
};

class Head {
 public:
  Head(const appl_gated_delta& op, int head, float* memory)
      : op_(op), sizes_(op), head_(head), factors_(op, head, memory), spare_(memory + round_up(Factors::floats(sizes_), 16)) {}

  static size_t floats(const Sizes& sizes) { return round_up(Factors::floats(sizes), 16) + size_t(sizes.key_dim) * kColumns; }

  void run(int begin, int end, float* state) {
    for (int from = begin; from < end; from += kTokens) {
      const int count = std::min(kTokens, end - from);
      factors_.make(from, count);
      for (int first = 0; first < sizes_.value_dim; first += kColumns) run_columns(from, count, state + first, first);
    }
  }

 private:
  // Of several tokens, a tile lies in spare memory meanwhile: its rows would displace each other in the first-level cache, as they are a
  // power of two apart. So does a tile that has fewer columns than its registers.
  void run_columns(int begin, int count, float* state, int first) {
    const int width = std::min(kColumns, sizes_.value_dim - first);
    Tile tile{state, size_t(sizes_.value_dim), sizes_.key_dim, {}, {}, {}};
    const bool is_moved = width < kColumns || count > kFewTokens;
    if (is_moved) {
      tile.state = spare_;
      tile.stride = kColumns;
      copy_rows({state, size_t(sizes_.value_dim)}, {spare_, kColumns}, sizes_.key_dim, width);
    }
    if (op_.by_channel != 0) run_tile<true>(tile, begin, count, first, width);
    else run_tile<false>(tile, begin, count, first, width);
    if (is_moved) copy_rows({spare_, kColumns}, {state, size_t(sizes_.value_dim)}, sizes_.key_dim, width);
  }

  template <bool ByChannel>
  void run_tile(Tile& tile, int begin, int count, int first, int width) {
    const size_t column = size_t(head_) * size_t(sizes_.value_dim) + size_t(first);
    const auto values = [&](int t) { return op_.v.data + size_t(begin + t) * size_t(op_.v.stride) + column; };
    const auto outputs = [&](int t) { return op_.out.data + size_t(begin + t) * size_t(op_.out.stride) + column; };
    // A token waits for its values, and their rows are far apart: they are asked for a token before.
    const auto finish = [&](int t) {
      tile.finish(factors_, t, values(t), outputs(t), width);
      if (t + 1 == count) return;
      ask_for(values(t + 1), width);
      ask_for(outputs(t + 1), width);
    };
    tile.pass<ByChannel, false, true>(factors_, 0, 0);
    finish(0);
    for (int t = 1; t < count; ++t) {
      tile.pass<ByChannel, true, true>(factors_, t - 1, t);
      finish(t);
    }
    tile.pass<ByChannel, true, false>(factors_, count - 1, count - 1);
  }

  const appl_gated_delta& op_;
  const Sizes sizes_;
  const int head_;
  Factors factors_;
  float* const spare_;
};

}  // namespace

size_t scratch_bytes(const appl_gated_delta& op) { return round_up(Head::floats(Sizes(op)) * sizeof(float), 64); }

void run_gated_delta(appl_pool& pool, const appl_gated_delta& op, const appl_state& state, const appl_step& step, float* scratch) {
  const Sizes sizes(op);
  const size_t size = size_t(sizes.key_dim) * size_t(sizes.value_dim);
  carry_heads<Head>(pool, op, op.num_value_heads, size, state, step, scratch);
}

}  // namespace appl
