// The real-gated linear recurrent unit; see appliance.program.states.RgLru.
#include <cmath>

#include "activation.h"
#include "memory.h"
#include "states.h"

namespace appl {
namespace {

constexpr int kWide = 64;  // columns of an item: a few lines of each row of the step

Floats root_of(Floats x) {
  Floats result;
  for (int i = 0; i < kWidth; ++i) result[i] = std::sqrt(x[i]);
  return result;
}

// Up to a vector of neighbouring columns.
class Columns {
 public:
  Columns(const appl_rg_lru& op, int first, int count)
      : op_(op), first_(first), count_(count), rate_(-8.0f * softplus(load_first(op.decay + first, count))),
        input_bias_(load_first(op.input_bias + first, count)), recurrence_bias_(load_first(op.recurrence_bias + first, count)) {}

  void run(const int32_t* positions, int begin, int end, float* state) const {
    Floats h = load_first(state, count_);
    for (int t = begin; t < end; ++t) {
      const Floats decay = vexp(rate_ * vsigmoid(input(op_.recurrence_gate, t) + recurrence_bias_));
      const Floats taken = vsigmoid(input(op_.input_gate, t) + input_bias_) * input(op_.x, t);
      h = decay * h + (positions[t] == 0 ? taken : root_of(1.0f - decay * decay) * taken);
      store_first(op_.out.data + size_t(t) * size_t(op_.out.stride) + first_, h, count_);
    }
    store_first(state, h, count_);
  }

 private:
  Floats input(const appl_span& span, int t) const { return load_first(span.data + size_t(t) * size_t(span.stride) + first_, count_); }

  const appl_rg_lru& op_;
  const int first_, count_;
  const Floats rate_, input_bias_, recurrence_bias_;
};

}  // namespace

void run_rg_lru(appl_pool& pool, const appl_rg_lru& op, const appl_state& state, const appl_step& step) {
  const int items = divided(op.x.width, kWide);
  constexpr int kCost = 32;  // of a column's three exponentials and its root, in products
  parallel_for(pool, int64_t(step.num_seqs) * items, tokens_per_sequence(step) * kWide * kCost, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int first = int(item % items) * kWide, width = std::min(kWide, op.x.width - first);
      carry(step, state, int(item / items), {size_t(first), 1, size_t(width), size_t(width)}, [&](int from, int to, float* at) {
        for (int i = 0; i < width; i += kWidth) Columns(op, first + i, width - i).run(step.positions, from, to, at + i);
      });
    }
  });
}

}  // namespace appl
