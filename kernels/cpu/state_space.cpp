// The selective state space model; see appliance.program.states.StateSpace.
//
// A row of the state does not depend on others, so several tokens pass over it while it is in a register.
#include "activation.h"
#include "memory.h"
#include "states.h"

namespace appl {
namespace {

constexpr int kBlock = 32;                     // tokens whose factors are made together
constexpr int kTokens = kWidth == 16 ? 4 : 2;  // that pass over a row together: their sums stay in registers
constexpr int kVectors = 2;                    // of a tile's channels
constexpr int kColumns = kVectors * kWidth;
constexpr float kLog2E = 1.44269504088896341f;

const float* row_of(const appl_span& span, int row) { return span.data + size_t(row) * size_t(span.stride); }

// A time step from its raw value and bias.
Floats time_step(const appl_state_space& op, Floats raw) { return vmin(vmax(softplus(raw), splat(op.dt_min)), splat(op.dt_max)); }

struct Sizes {
  int state_size, head_dim;
  explicit Sizes(const appl_state_space& op) : state_size(op.b.width / op.num_groups), head_dim(op.x.width / op.num_heads) {}
};

// One head whose rows decay alike.
class Head {
 public:
  Head(const appl_state_space& op, int head, float* memory)
      : op_(op), sizes_(op), head_(head), group_(head / (op.num_heads / op.num_groups)), steps_(memory), decays_(memory + kBlock),
        spare_(memory + 2 * kBlock), rate_(std::exp(op.a_log[head])) {}

  static size_t floats(const Sizes& sizes) { return 2 * kBlock + size_t(sizes.state_size) * kColumns; }

  void run(int begin, int end, float* state) {
    for (int from = begin; from < end; from += kBlock) {
      const int count = std::min(kBlock, end - from);
      make_factors(from, count);
      for (int first = 0; first < sizes_.head_dim; first += kColumns) run_columns(from, count, state + first, first);
    }
  }

 private:
  void make_factors(int begin, int count) {
    const float bias = op_.dt_bias == nullptr ? 0.0f : op_.dt_bias[head_];
    for (int t = 0; t < count; ++t) steps_[t] = row_of(op_.dt, begin + t)[head_] + bias;
    map(steps_, count, [this](Floats raw) { return time_step(op_, raw); }, steps_);
    map(decays_, count, [this](Floats dt) { return vexp(-rate_ * dt); }, steps_);
  }

  // A tile that has fewer columns than its registers lies in spare memory meanwhile.
  void run_columns(int begin, int count, float* state, int first) {
    const int width = std::min(kColumns, sizes_.head_dim - first);
    const size_t stride = size_t(sizes_.head_dim);
    if (width == kColumns) return run_tile(begin, count, state, stride, first, width);
    copy_rows({state, stride}, {spare_, kColumns}, sizes_.state_size, width);
    run_tile(begin, count, spare_, kColumns, first, width);
    copy_rows({spare_, kColumns}, {state, stride}, sizes_.state_size, width);
  }

  void run_tile(int begin, int count, float* state, size_t stride, int first, int width) const {
    int t = 0;
    for (; t + kTokens <= count; t += kTokens) pass<kTokens>(begin, t, state, stride, first, width);
    for (; t < count; ++t) pass<1>(begin, t, state, stride, first, width);
  }

  template <int Tokens>
  void pass(int begin, int token, float* state, size_t stride, int first, int width) const {
    const size_t column = size_t(head_) * size_t(sizes_.head_dim) + size_t(first);
    Floats taken[Tokens][kVectors], sums[Tokens][kVectors], decay[Tokens];
    const float *b[Tokens], *c[Tokens];
    const Floats skip = splat(op_.d[head_]);
    for (int t = 0; t < Tokens; ++t) {
      const int row = begin + token + t;
      const float* const x = row_of(op_.x, row) + column;
      for (int v = 0; v < kVectors; ++v) {
        const Floats value = load_first(x + v * kWidth, std::max(width - v * kWidth, 0));
        taken[t][v] = value * steps_[token + t];
        sums[t][v] = value * skip;
      }
      decay[t] = splat(decays_[token + t]);
      b[t] = row_of(op_.b, row) + group_ * sizes_.state_size;
      c[t] = row_of(op_.c, row) + group_ * sizes_.state_size;
    }
    for (int n = 0; n < sizes_.state_size; ++n) {
      float* const at = state + size_t(n) * stride;
      Floats s[kVectors];
      for (int v = 0; v < kVectors; ++v) s[v] = load(at + v * kWidth);
      for (int t = 0; t < Tokens; ++t) {
        const Floats factor = splat(b[t][n]), reads = splat(c[t][n]);
        for (int v = 0; v < kVectors; ++v) {
          s[v] = multiply_add(taken[t][v] * factor, s[v], decay[t]);
          sums[t][v] = multiply_add(sums[t][v], s[v], reads);
        }
      }
      for (int v = 0; v < kVectors; ++v) store(at + v * kWidth, s[v]);
    }
    for (int t = 0; t < Tokens; ++t) {
      float* const out = op_.out.data + size_t(begin + token + t) * size_t(op_.out.stride) + column;
      for (int v = 0; v < kVectors && v * kWidth < width; ++v) store_first(out + v * kWidth, sums[t][v], width - v * kWidth);
    }
  }

  const appl_state_space& op_;
  const Sizes sizes_;
  const int head_, group_;
  float *const steps_, *const decays_, *const spare_;
  const float rate_;
};

// Neighbouring channels of one group, whose rows decay by themselves. The state and the rates lie in spare memory meanwhile, because rows
// as far apart as those of many channels would displace each other in the first-level cache.
class Channels {
 public:
  static constexpr int kWide = 64;  // channels of an item: a few lines of each row of the step
  static size_t floats(const Sizes& sizes) { return 2 * size_t(sizes.state_size) * kWide; }

  Channels(const appl_state_space& op, const float* rates, int first, int width, float* memory)
      : op_(op), state_size_(Sizes(op).state_size), first_(first), width_(width), group_(first / (op.num_heads / op.num_groups)),
        state_(memory), rates_(memory + size_t(state_size_) * kWide) {
    copy_rows({rates + first, size_t(op.num_heads)}, {rates_, kWide}, state_size_, width_);
  }

  void run(int begin, int end, float* slot) const {
    const size_t stride = size_t(op_.num_heads);
    copy_rows({slot, stride}, {state_, kWide}, state_size_, width_);
    for (int t = begin; t < end; ++t) {
      for (int i = 0; i < width_; i += kWidth) run_token(t, i);
    }
    copy_rows({state_, kWide}, {slot, stride}, state_size_, width_);
  }

 private:
  // The channels from `i` on of one token; what lies behind the last channel is computed and not kept.
  void run_token(int t, int i) const {
    const int count = width_ - i;
    const Floats bias = op_.dt_bias == nullptr ? Floats{} : load_first(op_.dt_bias + first_ + i, count);
    const Floats x = load_first(row_of(op_.x, t) + first_ + i, count);
    const Floats dt = time_step(op_, load_first(row_of(op_.dt, t) + first_ + i, count) + bias);
    const Floats taken = dt * x;
    const float *const b = row_of(op_.b, t) + group_ * state_size_, *const c = row_of(op_.c, t) + group_ * state_size_;
    Floats sum = x * load_first(op_.d + first_ + i, count);
    for (int n = 0; n < state_size_; ++n) {
      float* const at = state_ + n * kWide + i;
      const Floats decay = vexp2<5>(load(rates_ + n * kWide + i) * dt);
      const Floats s = multiply_add(taken * splat(b[n]), load(at), decay);
      store(at, s);
      sum = multiply_add(sum, s, splat(c[n]));
    }
    store_first(op_.out.data + size_t(t) * size_t(op_.out.stride) + first_ + i, sum, count);
  }

  const appl_state_space& op_;
  const int state_size_, first_, width_, group_;
  float *const state_, *const rates_;  // [N][kWide]
};

void run_channels(appl_pool& pool, const appl_state_space& op, const appl_state& state, const float* rates, const appl_step& step,
                  float* scratch) {
  const int per_group = op.num_heads / op.num_groups, blocks = divided(per_group, Channels::kWide), items = op.num_groups * blocks;
  const int state_size = Sizes(op).state_size;
  constexpr int kExponentials = 8;  // an exponential costs as much as so many products
  const int64_t work = tokens_per_sequence(step) * Channels::kWide * state_size * kExponentials;
  parallel_for(pool, int64_t(step.num_seqs) * items, work, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t item = begin; item < end; ++item) {
      const int index = int(item % items), within = index % blocks * Channels::kWide, first = index / blocks * per_group + within;
      const int width = std::min(Channels::kWide, per_group - within);
      const Channels channels(op, rates, first, width, scratch + size_t(thread) * scratch_bytes(op) / sizeof(float));
      const StatePart part{size_t(first), state_size, size_t(width), size_t(op.num_heads)};
      carry(step, state, int(item / items), part, [&](int from, int to, float* at) { channels.run(from, to, at); });
    }
  }, 1);
}

}  // namespace

std::vector<float> rates_of(const appl_state_space& op) {
  if (op.by_state == 0) return {};
  const size_t heads = size_t(op.num_heads), state_size = size_t(Sizes(op).state_size);
  std::vector<float> result(heads * state_size);
  for (size_t h = 0; h < heads; ++h) {
    for (size_t n = 0; n < state_size; ++n) result[n * heads + h] = -std::exp(op.a_log[h * state_size + n]) * kLog2E;
  }
  return result;
}

size_t scratch_bytes(const appl_state_space& op) {
  const Sizes sizes(op);
  const size_t floats = op.by_state == 0 ? Head::floats(sizes) : Channels::floats(sizes);
  return round_up(floats * sizeof(float), 64);
}

void run_state_space(appl_pool& pool, const appl_state_space& op, const appl_state& state, const float* rates, const appl_step& step,
                     float* scratch) {
  if (op.by_state != 0) return run_channels(pool, op, state, rates, step, scratch);
  const Sizes sizes(op);
  const size_t size = size_t(sizes.state_size) * size_t(sizes.head_dim);
  carry_heads<Head>(pool, op, op.num_heads, size, state, step, scratch);
}

}  // namespace appl
