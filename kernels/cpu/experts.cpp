#include "experts.h"

#include <limits>
#include <vector>

#include "activation.h"
#include "linear.h"
#include "memory.h"
#include "status.h"
#include "weight.h"

namespace appl {
namespace {

float* row_of(const appl_span& span, int64_t row) { return span.data + size_t(row) * size_t(span.stride); }

// Adds what the expert of a choice gave; the first one begins the sum.
void add_output(float factor, int choice, const float* result, int width, float* out) {
  if (choice == 0) map(out, width, [factor](Floats y) { return factor * y; }, result);
  else map(out, width, [factor](Floats sum, Floats y) { return sum + factor * y; }, out, result);
}

// The starts of the parts of scratch memory, each aligned to a cache line.
struct Places {
  int32_t* numbers;
  uint8_t *tokens_gate, *tokens_up;  // the rows, prepared
  uint8_t *pairs_gate, *pairs_up;    // the same for each pair
  uint8_t* inner;
  float *sums, *outputs, *threads;
  float *thread_low, *low;  // products with an adapter's `down`: of gate and up for each thread, of the down matrix for each pair
  size_t end;

  Places(const ExpertsShape& s, uint8_t* base) {
    size_t at = 0;
    const auto take = [&](size_t bytes) {
      uint8_t* const place = base == nullptr ? nullptr : base + at;  // null: only the end is asked for
      at += round_up(bytes, 64);
      return place;
    };
    const auto floats = [&](size_t count) { return reinterpret_cast<float*>(take(count * sizeof(float))); };
    numbers = reinterpret_cast<int32_t*>(take(s.number_bytes()));
    tokens_up = take(s.up.bytes(s.max_rows));
    pairs_up = take(s.up.bytes(s.max_pairs));
    tokens_gate = s.has_gate ? take(s.gate.bytes(s.max_rows)) : tokens_up;
    pairs_gate = s.has_gate ? take(s.gate.bytes(s.max_pairs)) : pairs_up;
    inner = take(s.inner.bytes(s.max_pairs));
    sums = floats(size_t(s.max_pairs) * size_t(s.sums));
    outputs = floats(size_t(s.max_pairs) * size_t(s.outputs));
    threads = floats(size_t(s.num_threads) * size_t(s.thread_floats));
    thread_low = floats(size_t(s.num_threads) * size_t(2 * s.low));
    low = floats(size_t(s.max_pairs) * size_t(s.low));
    end = at;
  }
};

// The rows that chose an expert are adjacent, ordered by expert and then by row: a pair's place is its index in this order.
class Mixture {
 public:
  Mixture(appl_pool& pool, const appl_experts& op, const ExpertsShape& shape, int rows, uint8_t* scratch,
          const appl_adapter_experts* adapters = nullptr, const AdapterRows* adapted = nullptr)
      : pool_(pool), op_(op), s_(shape), at_(shape, scratch), rows_(rows), chosen_(op.experts.width), starts_(at_.numbers),
        pairs_(starts_ + op.num_experts + 1), places_(pairs_ + int64_t{rows} * chosen_), adapters_(adapters), adapted_(adapted) {}

  void run() {
    order_pairs();
    prepare_tokens();
    for (int expert = op_.first_own; expert < end_own();) {
      const int end = group_end(expert);
      run_group(expert, end);
      expert = end;
    }
  }

 private:
  int end_own() const { return op_.first_own + op_.num_own; }
  int num_places(int expert, int end) const { return starts_[end] - starts_[expert]; }
  int row_at(int place) const { return pairs_[place] / chosen_; }
  float factor_at(int place) const { return row_of(op_.factors, row_at(place))[pairs_[place] % chosen_]; }
  const int32_t* experts_of(int row) const { return reinterpret_cast<const int32_t*>(row_of(op_.experts, row)); }

  void order_pairs() {
    std::fill_n(starts_, op_.num_experts + 1, 0);
    for (int row = 0; row < rows_; ++row) {
      for (int i = 0; i < chosen_; ++i) {
        const int expert = experts_of(row)[i];
        require(expert >= 0 && expert < op_.num_experts, "experts: a row chose one that is not there");
        const bool is_in_order = i == 0 || expert > experts_of(row)[i - 1];  // in which they are added, unless they stay apart
        require(is_in_order || op_.is_apart != 0, "experts: those of a row are not in ascending order");
        ++starts_[expert + 1];
      }
    }
    for (int expert = 0; expert < op_.num_experts; ++expert) starts_[expert + 1] += starts_[expert];
    for (int row = 0, pair = 0; row < rows_; ++row) {
      for (int i = 0; i < chosen_; ++i, ++pair) place(pair, experts_of(row)[i]);
    }
    for (int expert = op_.num_experts; expert > 0; --expert) starts_[expert] = starts_[expert - 1];
    starts_[0] = 0;
  }
  // Places a pair. An expert's start advances with each placed pair, and finally is the next expert's start.
  void place(int pair, int expert) {
    const int at = starts_[expert]++;
    pairs_[at] = pair;
    places_[pair] = at;
  }

  // Prepares each row once, and copies it for each expert that reads it; with weighed inputs, each pair has another input.
  void prepare_tokens() {
    if (op_.weigh_input != 0) return;
    const auto row = [&](int64_t r, int) { return row_of(op_.x, r); };
    up_tokens_ = prepare(pool_, s_.up, rows_, at_.tokens_up, row);
    gate_tokens_ = s_.has_gate ? prepare(pool_, s_.gate, rows_, at_.tokens_gate, row) : up_tokens_;
  }

  int group_end(int expert) const {
    int end = expert + 1;
    while (end < end_own() && num_places(expert, end + 1) <= s_.max_pairs) ++end;
    return end;
  }

  void run_group(int expert, int end) {
    first_ = starts_[expert];
    count_ = num_places(expert, end);
    if (count_ == 0) return;
    weights_.clear();
    weights_.reserve(size_t(end - expert) * 2);
    calls_.clear();
    const Prepared up = inputs(s_.up, up_tokens_, at_.pairs_up);
    const Prepared gate = s_.has_gate ? inputs(s_.gate, gate_tokens_, at_.pairs_gate) : up;
    for (int e = expert; e < end; ++e) {
      if (s_.has_gate) add_call(*op_.gate, e, gate, op_.gate_bias, at_.sums, s_.sums);
      add_call(*op_.up, e, up, op_.up_bias, at_.sums + (s_.has_gate ? op_.width : 0), s_.sums);
    }
    run_linears(pool_, calls_);
    weights_.clear();
    calls_.clear();
    const Prepared inner = prepare(pool_, s_.inner, count_, at_.inner, [&](int64_t pair, int thread) { return activated(pair, thread); });
    for (int e = expert; e < end; ++e) add_call(*op_.down, e, inner, op_.down_bias, at_.outputs, s_.outputs);
    run_linears(pool_, calls_);
    change_outputs();
    add_up();
  }

  // The inputs of the group's pairs. With a single row, all of its experts read the same one.
  Prepared inputs(const PreparedShape& shape, const Prepared& tokens, uint8_t* memory) const {
    if (op_.weigh_input != 0) return prepare(pool_, shape, count_, memory, [&](int64_t pair, int thread) { return weighed(pair, thread); });
    if (rows_ == 1) return tokens;
    const Prepared pairs = prepared_at(shape, count_, memory);
    parallel_for(pool_, count_, shape.columns, [&](int64_t begin, int64_t end) {
      for (int64_t pair = begin; pair < end; ++pair) copy_row(tokens, row_at(first_ + int(pair)), pairs, int(pair));
    });
    return pairs;
  }

  void add_call(const appl_weight& weight, int expert, const Prepared& input, const float* bias, float* out, int stride) {
    const int count = num_places(expert, expert + 1), place = starts_[expert] - first_;
    if (count == 0) return;
    appl_weight& own = weights_.emplace_back(weight);
    own.rows = weight.rows / op_.num_own;
    own.num_panels = own.rows / kPanel;
    const size_t number = size_t(expert - op_.first_own);
    own.data += number * size_t(own.num_panels) * own.panel_bytes;
    const Prepared rows = input.rows == 1 ? input : rows_of(input, place, count);
    const float* const own_bias = bias == nullptr ? nullptr : bias + number * size_t(own.rows);
    calls_.push_back({&own, rows, nullptr, out + size_t(place) * size_t(stride), stride, own_bias, APPL_ACTIVATION_NONE, false});
  }

  float* thread_row(int thread) const { return at_.threads + size_t(thread) * size_t(s_.thread_floats); }

  const float* weighed(int64_t pair, int thread) const {
    float* const out = thread_row(thread);
    const float factor = factor_at(first_ + int(pair));
    map(out, op_.x.width, [factor](Floats x) { return factor * x; }, row_of(op_.x, row_at(first_ + int(pair))));
    return out;
  }

  // The change that the adapter of a pair's row makes to gate and up (0) or to down (1) of its expert; without a map if there is none.
  AdapterPlace change_of(int64_t pair, int which) const {
    const int place = first_ + int(pair);
    const AdapterRow* const row = adapters_ == nullptr ? nullptr : adapted_->find(row_at(place));
    if (row == nullptr) return {};
    const int expert = experts_of(row_at(place))[pairs_[place] % chosen_];
    const size_t own = size_t(row->slot) * size_t(op_.num_own) + size_t(expert - op_.first_own);
    const appl_adapter_map& map = adapters_->maps[own * 2 + size_t(which)];
    if (map.ranks == nullptr) return {};
    if (which == 1) return {&map, &s_.outputs, 1, adapters_->layout};
    return {&map, inner_widths_, op_.is_gated != 0 ? 2 : 1, adapters_->layout};
  }
  float scale_of(int64_t pair) const { return adapted_->find(row_at(first_ + int(pair)))->scale; }
  float* low_of(int64_t pair) const { return at_.low + size_t(pair) * size_t(s_.low); }

  void change_sums(int64_t pair, int thread) const {
    const AdapterPlace change = change_of(pair, 0);
    if (change.map == nullptr) return;
    float* const low = at_.thread_low + size_t(thread) * size_t(2 * s_.low);
    adapter_shrink(change, row_of(op_.x, row_at(first_ + int(pair))), op_.x.width, low);
    const float factor = op_.weigh_input != 0 ? factor_at(first_ + int(pair)) : 1.0f;
    adapter_expand(change, low, factor * scale_of(pair), at_.sums + size_t(pair) * size_t(s_.sums));
  }

  void change_outputs() const {
    if (adapters_ == nullptr) return;
    parallel_for(pool_, count_, int64_t{s_.low} * s_.outputs, [&](int64_t begin, int64_t end) {
      for (int64_t pair = begin; pair < end; ++pair) {
        const AdapterPlace change = change_of(pair, 1);
        if (change.map != nullptr) adapter_expand(change, low_of(pair), scale_of(pair), at_.outputs + size_t(pair) * size_t(s_.outputs));
      }
    });
  }

  const float* activated(int64_t pair, int thread) const {
    if (adapters_ == nullptr) return plainly_activated(pair, thread);
    change_sums(pair, thread);
    const float* const inner = plainly_activated(pair, thread);
    const AdapterPlace change = change_of(pair, 1);
    if (change.map != nullptr) adapter_shrink(change, inner, op_.width, low_of(pair));
    return inner;
  }

  const float* plainly_activated(int64_t pair, int thread) const {
    float* const out = thread_row(thread);
    const float* const gate = at_.sums + size_t(pair) * size_t(s_.sums);
    const float* const up = gate + (op_.is_gated != 0 ? op_.width : 0);
    if (op_.is_gated != 0 && op_.activation == APPL_ACTIVATION_SILU && op_.alpha != 1.0f) {
      const float alpha = op_.alpha;
      activate([alpha](Floats x) { return x * vsigmoid(alpha * x); }, gate, up, out);
      return out;
    }
    with_activation(op_.activation, [&](auto f) { activate(f, gate, up, out); });
    return out;
  }

  template <class F>
  void activate(F&& f, const float* gate, const float* up, float* out) const {
    if (op_.is_gated == 0) return map(out, op_.width, f, up);
    if (op_.limit == 0 && op_.up_offset == 0) return map(out, op_.width, [&](Floats g, Floats u) { return f(g) * u; }, gate, up);
    const float limit = op_.limit > 0 ? op_.limit : std::numeric_limits<float>::infinity(), offset = op_.up_offset;
    const Floats most = splat(limit), least = splat(-limit);  // NaN stays NaN, because the bound is the first operand
    map(out, op_.width, [&](Floats g, Floats u) { return f(vmin(most, g)) * (vmin(most, vmax(least, u)) + offset); }, gate, up);
  }

  // Sums the outputs of a row, beginning with the first expert that it chose.
  void add_up() const {
    parallel_for(pool_, rows_, int64_t{chosen_} * op_.out.width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int i = 0; i < chosen_; ++i) {
          const int place = places_[row * chosen_ + i] - first_;
          if (place >= 0 && place < count_) add(int(row), i, at_.outputs + size_t(place) * size_t(s_.outputs));
        }
      }
    });
  }
  void add(int row, int choice, const float* result) const {
    float* const out = row_of(op_.out, row);
    if (op_.is_apart != 0) {
      std::copy_n(result, s_.outputs, out + size_t(choice) * size_t(s_.outputs));
      return;
    }
    add_output(op_.weigh_input != 0 ? 1.0f : row_of(op_.factors, row)[choice], choice, result, s_.outputs, out);
  }

  appl_pool& pool_;
  const appl_experts& op_;
  const ExpertsShape& s_;
  const Places at_;
  const int rows_, chosen_;
  int32_t* const starts_;  // the place of each expert's first pair, and after them the number of pairs
  int32_t* const pairs_;   // by place: row * chosen + the index among its choices
  int32_t* const places_;  // by pair
  Prepared gate_tokens_, up_tokens_;
  int first_ = 0, count_ = 0;                   // the places of the group
  const appl_adapter_experts* const adapters_;  // null without places for adapters, as the rows that have one
  const AdapterRows* const adapted_;
  const int32_t inner_widths_[2] = {op_.width, op_.width};
  std::vector<appl_weight> weights_;
  std::vector<LinearCall> calls_;
};

}  // namespace

size_t ExpertsShape::bytes() const { return Places(*this, nullptr).end; }

ExpertsShape experts_shape(const appl_experts& op, bool quantize_activations, int max_rows, int num_threads, int max_rank) {
  ExpertsShape s;
  s.low = max_rank;
  s.up = input_shape(*op.up, quantize_activations);
  s.inner = input_shape(*op.down, quantize_activations);
  s.has_gate = op.gate != nullptr;
  if (s.has_gate) s.gate = input_shape(*op.gate, quantize_activations);
  s.max_rows = max_rows;
  s.num_chosen = op.experts.width;
  s.max_pairs = std::max(max_rows, std::min(max_rows * s.num_chosen, kLeastPairs));
  s.num_experts = op.num_experts;
  s.num_threads = num_threads;
  s.sums = op.is_gated != 0 ? 2 * op.width : op.width;
  s.outputs = output_width(op);
  s.thread_floats = std::max(op.x.width, op.width);
  return s;
}

void run_experts(appl_pool& pool, const appl_experts& op, const ExpertsShape& shape, int rows, uint8_t* scratch) {
  if (rows > 0) Mixture(pool, op, shape, rows, scratch).run();
}

void run_mix_experts(appl_pool& pool, const appl_mix_experts& op, int rows) {
  const int width = op.out.width, chosen = op.factors.width;
  parallel_for(pool, rows, int64_t{chosen} * width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float *const x = row_of(op.x, row), *const factors = row_of(op.factors, row);
      for (int i = 0; i < chosen; ++i) {
        add_output(op.weigh_input != 0 ? 1.0f : factors[i], i, x + size_t(i) * size_t(width), width, row_of(op.out, row));
      }
    }
  });
}

// By one thread: a choice takes a few nanoseconds, and the expert that it chose far more.
void run_place_experts(const appl_place_experts& op, int rows) {
  for (int row = 0; row < rows; ++row) {
    const auto* const experts = reinterpret_cast<const int32_t*>(row_of(op.experts, row));
    auto* const out = reinterpret_cast<int32_t*>(row_of(op.out, row));
    for (int i = 0; i < op.experts.width; ++i) {
      const int expert = experts[i];
      require(expert >= 0 && expert < op.num_experts, "place_experts: a row chose an expert that is not there");
      const int first = op.starts[expert], copies = op.starts[expert + 1] - first;
      require(first >= 0 && copies > 0 && first + copies <= op.num_places, "place_experts: an expert has no place");
      out[i] = op.places[first + (row + expert) % copies];
      ++op.loads[expert];
    }
  }
}

void run_adapter_experts(appl_pool& pool, const appl_adapter_experts& op, const AdapterRows& adapted, const ExpertsShape& shape, int rows,
                         uint8_t* scratch) {
  if (rows > 0) Mixture(pool, op.experts, shape, rows, scratch, &op, &adapted).run();
}

}  // namespace appl
