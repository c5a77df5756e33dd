#include "program.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstring>
#include <utility>

#include "attention.h"
#include "elementwise.h"
#include "ranks.h"
#include "screen.h"
#include "states.h"
#include "status.h"
#include "streams.h"
#include "whole_attention.h"

using appl::require;

namespace {

bool is_same(const appl_span& a, const appl_span& b) {
  return a.data == b.data && a.stride == b.stride && a.width == b.width && a.extent == b.extent;
}

const appl_limits& checked(const appl_limits& limits) {
  require(limits.max_tokens > 0 && limits.max_seqs > 0 && limits.max_sampled > 0 && limits.max_model_len > 0, "a limit is not positive");
  require(limits.block_size > 0 && limits.block_size <= 256, "block_size must be 1 to 256");
  require(limits.num_blocks >= 0 && int64_t{limits.num_blocks} * limits.block_size <= INT_MAX, "bad num_blocks");
  const int kv = limits.kv_layout;
  require((kv >= APPL_F32 && kv <= APPL_INT8) || kv == APPL_F8 || kv == APPL_E5M2, "the cache is f32, f16, bf16, int8, e4m3 or e5m2");
  return limits;
}

}  // namespace

appl_program::appl_program(appl_pool& pool, const appl_operator* operators, int num_operators, const appl_kv_cache* caches, int num_caches,
                           const appl_state* states, int num_states, const appl_limits& limits)
    : pool_(pool), limits_(checked(limits)), vocabulary_(INT_MAX) {
  for (int i = 0; i < num_caches; ++i) bind_cache(caches[i]);
  bind_states(states, num_states);
  appl::ScratchShape largest;
  for (const appl::KvLayer& layer : layers_) largest = largest.joined(appl::ScratchShape::of(layer.geometry));
  operators_.reserve(size_t(num_operators));
  for (int i = 0; i < num_operators; ++i) bind(operators[i]);
  for (const bool has_operator : has_operator_) require(has_operator, "a state has no operator");
  prepared_bytes_ = appl::round_up(prepared_bytes_, 4096);
  next_bytes_ = appl::round_up(next_bytes_, 4096);
  const bool attends = largest.value_width > 0;
  const size_t attention = attends ? appl::attention_workspace_bytes(pool.num_threads(), largest, limits.max_seqs * max_heads_) : 0;
  const size_t linear = size_t(pool.num_threads()) * std::max(appl::kGatedSumFloats * sizeof(float), normed_bytes_);
  const size_t scratch = std::max({attention, linear, screen_bytes_, experts_bytes_, states_bytes_, whole_bytes_, adapter_bytes_});
  workspace_ = std::make_shared<appl::Memory>(prepared_bytes_ + next_bytes_ + scratch);  // operators run one at a time
}

void appl_program::share_workspace(appl_program& other) {
  if (workspace_->bytes() < other.workspace_->bytes()) workspace_ = other.workspace_;
  else other.workspace_ = workspace_;
}

void appl_program::bind_cache(const appl_kv_cache& cache) {
  require(limits_.num_blocks > 0, "the program has caches, and there is no block for them");
  require(cache.num_kv_heads > 0 && cache.key_dim > 0 && cache.value_dim > 0, "a cache has no heads");
  require(limits_.num_blocks > 0, "a cache has no blocks");
  require(cache.keys != nullptr, "a cache has no memory");
  require(cache.group >= 0 && cache.group <= int(layers_.size()), "a cache has a bad group");
  appl::KvGeometry geometry(limits_, cache.num_kv_heads, cache.key_dim, cache.value_dim);
  require(cache.key_block_bytes >= geometry.key_block_bytes() && cache.key_block_bytes % 64 == 0, "a cache has bad key_block_bytes");
  geometry.key_stride = size_t(cache.key_block_bytes);
  geometry.values_in_keys = cache.values == nullptr;
  if (geometry.values_in_keys) {
    require(cache.num_kv_heads == 1 && cache.value_dim <= cache.key_dim, "a cache has no values, or they are no columns of its keys");
  } else {
    const bool fits = cache.value_block_bytes >= geometry.value_block_bytes() && cache.value_block_bytes % 64 == 0;
    require(fits, "a cache has bad value_block_bytes");
    geometry.value_stride = size_t(cache.value_block_bytes);
  }
  require(geometry.layout != APPL_INT8 || !geometry.values_in_keys, "keys of int8 are turned, so no values are columns of them");
  layers_.push_back({geometry, static_cast<uint8_t*>(cache.keys), static_cast<uint8_t*>(cache.values), cache.group});
  while (int(groups_.size()) <= cache.group) groups_.push_back({appl::Cascade(limits_)});
}

void appl_program::bind_states(const appl_state* states, int count) {
  require(count == 0 || limits_.num_states > 0, "the program has states, and there is no slot for them");
  for (int i = 0; i < count; ++i) require(states[i].data != nullptr && states[i].size > 0, "a state has no memory");
  states_.assign(states, states + count);
  has_operator_.assign(size_t(count), false);
}

namespace {

constexpr int32_t kNoState = -1;

int32_t state_of(const appl_operator& op) {
  switch (op.kind) {
    case APPL_OP_SHORT_CONV: return op.as.short_conv.state;
    case APPL_OP_GATED_DELTA: return op.as.gated_delta.state;
    case APPL_OP_STATE_SPACE: return op.as.state_space.state;
    case APPL_OP_RG_LRU: return op.as.rg_lru.state;
    default: return kNoState;
  }
}

bool has_state(const appl_operator& op) { return state_of(op) != kNoState; }

}  // namespace

// Each operator copies its state alone, so a state has one operator.
void appl_program::bind_state(Bound& bound) {
  const auto& as = bound.op.as;
  const size_t state = size_t(state_of(bound.op));
  require(!has_operator_[state], "two operators have one state");
  has_operator_[state] = true;
  size_t bytes = 0;
  if (bound.op.kind == APPL_OP_SHORT_CONV) {
    bytes = appl::scratch_bytes(as.short_conv);
    bound.constants = appl::taps_of(as.short_conv);
  } else if (bound.op.kind == APPL_OP_GATED_DELTA) {
    bytes = appl::scratch_bytes(as.gated_delta);
  } else if (bound.op.kind == APPL_OP_STATE_SPACE) {
    bytes = appl::scratch_bytes(as.state_space);
    bound.constants = appl::rates_of(as.state_space);
  }
  states_bytes_ = std::max(states_bytes_, size_t(pool_.num_threads()) * bytes);
  constant_bytes_ += bound.constants.size() * sizeof(float);
}

int appl_program::max_rows(const appl_span& span) const { return span.extent == APPL_TOKENS ? limits_.max_tokens : limits_.max_sampled; }

bool appl_program::overlaps(const appl_span& a, const appl_span& b) const {
  const float* a_end = a.data + size_t(max_rows(a)) * size_t(a.stride);
  const float* b_end = b.data + size_t(max_rows(b)) * size_t(b.stride);
  return a.data < b_end && b.data < a_end;
}

void appl_program::bind(const appl_operator& op) {
  appl::check_operator(op, layers_, states_, limits_);
  Bound bound{op};
  if (op.kind == APPL_OP_EMBED && op.as.embed.missing_row < 0) vocabulary_ = std::min(vocabulary_, appl::num_tokens(op.as.embed));
  if (op.kind == APPL_OP_PAGED_ATTENTION) {
    max_heads_ = std::max(max_heads_, op.as.attention.num_heads);
    groups_[size_t(layers_[size_t(op.as.attention.cache)].group)].sees_all |= appl::sees_all(op.as.attention);
  }
  if (op.kind == APPL_OP_EMBED && op.as.embed.type_table != nullptr) num_types_ = op.as.embed.num_types;
  if (op.kind == APPL_OP_EMBED && op.as.embed.takes_given != 0) embeds_width_ = op.as.embed.out.width;
  if (op.kind == APPL_OP_WHOLE_ATTENTION) {
    const int longest = std::min(limits_.max_model_len, limits_.max_tokens);
    whole_bytes_ = std::max(whole_bytes_, size_t(pool_.num_threads()) * appl::whole_attention_bytes(op.as.whole_attention, longest));
  }
  if (op.kind == APPL_OP_LINEAR) bind_linear(bound);
  if (op.kind == APPL_OP_LINEAR && op.as.linear.screen != nullptr) bind_screen(bound);
  if (op.kind == APPL_OP_GATED_ACTIVATION && op.as.gated.from_linear != 0) bind_gated(bound);
  if (op.kind == APPL_OP_EXPERTS) {
    bound.experts = appl::experts_shape(op.as.experts, limits_.quantize_activations != 0, max_rows(op.as.experts.x), pool_.num_threads());
    experts_bytes_ = std::max(experts_bytes_, bound.experts.bytes());
  }
  if (op.kind == APPL_OP_SPREAD_EXPERTS) {
    const appl_spread_experts& spread = op.as.spread_experts;
    const int most = spread.max_rows * (spread.num_ranks / spread.ranks_each);
    bound.experts = appl::experts_shape(appl::over_all(spread), limits_.quantize_activations != 0, most, pool_.num_threads());
    experts_bytes_ = std::max(experts_bytes_, bound.experts.bytes());
    if (first_spread_ < 0) first_spread_ = int(operators_.size());
  }
  if (op.kind == APPL_OP_HEAD_LINEAR) {
    bound.heads = appl::head_linear_shape(op.as.head_linear, limits_.quantize_activations != 0, max_rows(op.as.head_linear.x));
    experts_bytes_ = std::max(experts_bytes_, bound.heads.bytes());
  }
  bind_adapters(bound);
  if (has_state(op)) bind_state(bound);
  forget_overwritten(op);
  operators_.push_back(std::move(bound));
}

void appl_program::bind_adapters(Bound& bound) {
  const auto& as = bound.op.as;
  const auto take = [&](int num_slots, size_t bytes) {
    num_adapter_slots_ = std::min(num_adapter_slots_, num_slots);
    adapter_bytes_ = std::max({adapter_bytes_, bytes, sizeof(float)});  // not 0, which says that there are no places
  };
  if (bound.op.kind == APPL_OP_ADAPTER_LINEAR) {
    take(as.adapter_linear.num_slots, appl::adapter_linear_bytes(as.adapter_linear, max_rows(as.adapter_linear.x)));
  } else if (bound.op.kind == APPL_OP_ADAPTER_EMBED) {
    take(as.adapter_embed.num_slots, 0);
  } else if (bound.op.kind == APPL_OP_ADAPTER_EXPERTS) {
    const appl_experts& op = as.adapter_experts.experts;
    const bool quantizes = limits_.quantize_activations != 0;
    bound.experts = appl::experts_shape(op, quantizes, max_rows(op.x), pool_.num_threads(), as.adapter_experts.max_rank);
    experts_bytes_ = std::max(experts_bytes_, bound.experts.bytes());
    take(as.adapter_experts.num_slots, 0);
  }
}

// Linears that read the same activations in the same form share one preparation.
void appl_program::bind_linear(Bound& bound) {
  const appl_linear& op = bound.op.as.linear;
  bound.input = appl::input_shape(*op.weight, limits_.quantize_activations != 0);
  bound.input_is_ready = is_same(prepared_span_, op.x) && prepared_shape_ == bound.input;
  prepared_span_ = op.x;
  prepared_shape_ = bound.input;
  if (bound.input_is_ready) return;
  if (!operators_.empty()) {
    bind_norm(bound);
    bind_next(bound);
  }
  size_t& bytes = bound.is_next ? next_bytes_ : prepared_bytes_;
  bytes = std::max(bytes, bound.input.bytes(max_rows(op.x)));
}

// A screened Linear prepares its input in two forms, which no other operator shares.
void appl_program::bind_screen(Bound& linear) {
  const appl_linear& op = linear.op.as.linear;
  const int rows = max_rows(op.x);
  linear.rounded = appl::screen_shape(*op.screen);
  prepared_bytes_ = std::max(prepared_bytes_, appl::round_up(linear.input.bytes(rows), 64) + linear.rounded.bytes(rows));
  screen_bytes_ = std::max(screen_bytes_, appl::screen_scratch_bytes(*op.weight, linear.input, rows, pool_.num_threads()));
  prepared_span_ = {};
}

// A norm just before its Linear is done by that Linear: a row goes from the one to the other in the first-level cache.
void appl_program::bind_norm(Bound& linear) {
  Bound& before = operators_.back();
  if (before.op.kind != APPL_OP_RMS_NORM && before.op.kind != APPL_OP_LAYER_NORM) return;
  const appl_norm& norm = before.op.as.norm;
  if (!is_same(norm.out, linear.op.as.linear.x)) return;
  before.norm = linear.norm = before.op;
  normed_bytes_ = std::max(normed_bytes_, appl::round_up(size_t(norm.out.width) * sizeof(float), 64));
}

// A gated activation that is fused into its Linear is also prepared for the next Linear, if no other operator reads it.
void appl_program::bind_next(Bound& linear) {
  const appl_gated& gated = operators_.back().gated;
  if (operators_.back().op.kind != APPL_OP_GATED_ACTIVATION || gated.for_linear == 0 || gated.out.data == nullptr) return;
  if (!is_same(gated.out, linear.op.as.linear.x)) return;
  Bound& before = *(operators_.end() - 2);
  before.next = linear.input;
  before.min_rows_for_next = linear.min_rows_prepared =
      appl::min_rows_for_next(*before.op.as.linear.weight, before.input, linear.input, pool_.num_threads());
  linear.is_next = true;
}

// The Linear before computes gate and up of many rows and has them in its caches, so it also does the gated activation.
void appl_program::bind_gated(Bound& bound) {
  const appl_gated& op = bound.op.as.gated;
  const bool follows = !operators_.empty() && operators_.back().op.kind == APPL_OP_LINEAR;
  require(follows, "gated: no linear comes before");
  Bound& before = operators_.back();
  const appl_linear& linear = before.op.as.linear;
  require(op.gate.data == linear.out.data && op.up.data == op.gate.data + op.gate.width && op.gate.stride == linear.out.stride &&
              op.up.stride == linear.out.stride && op.gate.extent == linear.out.extent && linear.out.width == 2 * op.gate.width,
          "gated: gate and up are not the halves of what the linear before writes");
  require(linear.bias == nullptr && linear.activation == APPL_ACTIVATION_NONE && linear.accumulate == 0,
          "gated: the linear before does more than multiply");
  if (!appl::has_halves(*linear.weight)) return;
  before.gated = bound.gated = op;
}

void appl_program::forget_overwritten(const appl_operator& op) {
  const appl::Written written = appl::written_by(op);
  for (int i = 0; i < written.count; ++i) {
    if (prepared_span_.data != nullptr && overlaps(prepared_span_, written.spans[i])) prepared_span_ = {};
  }
}

void appl_program::check_step(const appl_step& step) const {
  require(step.num_tokens >= 0 && step.num_tokens <= limits_.max_tokens, "step: num_tokens is beyond its limit");
  require(step.num_seqs >= 0 && step.num_seqs <= limits_.max_seqs, "step: num_seqs is beyond its limit");
  require(step.num_sampled >= 0 && step.num_sampled <= limits_.max_sampled, "step: num_sampled is beyond its limit");
  require(step.num_groups >= int(groups_.size()), "step: a group of caches has no block tables");
  for (int t = 0; t < step.num_tokens; ++t) {
    require(step.token_ids[t] >= 0 && step.token_ids[t] < vocabulary_, "step: a token id is outside the vocabulary");
    require(step.positions[t] >= 0 && step.positions[t] < limits_.max_model_len, "step: a position is beyond max_model_len");
    const int type = step.token_types == nullptr ? 0 : step.token_types[t];
    require(type >= 0 && type < num_types_, "step: a token's type is not in the model");
    require(step.embeds == nullptr || step.embed_of[t] < step.num_embeds, "step: a token has an embedding that is not there");
  }
  require(step.embeds == nullptr || step.embeds_width == embeds_width_, "step: it has embeddings that the program does not take");
  require(step.query_start[0] == 0 && step.query_start[step.num_seqs] == step.num_tokens, "step: query_start does not cover the tokens");
  for (int s = 0; s < step.num_seqs; ++s) {
    const int tokens = step.query_start[s + 1] - step.query_start[s], length = step.seq_lens[s];
    require(tokens >= 0 && tokens <= length && length <= limits_.max_model_len, "step: a sequence has a bad length");
    require(step.adapter_slots == nullptr || step.adapter_slots[s] < num_adapter_slots_, "step: a sequence's adapter has no such slot");
    require(whole_bytes_ == 0 || tokens == length, "step: a sequence is not whole, and the model keeps nothing of the rest");
  }
  if (!states_.empty()) appl::check_pieces(step, limits_.num_states);
  else require(step.piece_first == nullptr, "step: it has pieces, and the program has no states");
  require(step.adapter_slots == nullptr || adapter_bytes_ > 0, "step: it has adapters, and the program has no places for them");
  for (int group = 0; group < int(groups_.size()); ++group) check_tables(appl::of_group(step, group));
  for (int r = 0; r < step.num_sampled; ++r) {
    require(step.sampled_rows[r] >= 0 && step.sampled_rows[r] < step.num_tokens, "step: a sampled row is no token");
    require(step.num_largest == nullptr || step.num_largest[r] >= 0, "step: a row asks for less than no logits");
    if (step.num_past == nullptr) continue;
    require(step.past_row[r] >= 0 && step.past_row[r] < step.past_rows, "step: past tokens have no such row");
    require(step.num_past[r] >= 0 && step.num_past[r] <= step.past_stride, "step: a row has more past tokens than its table");
  }
}

// Of a group, in a step whose lengths are checked.
void appl_program::check_tables(const appl_step& step) const {
  const int num_slots = limits_.num_blocks * limits_.block_size;
  for (int t = 0; t < step.num_tokens; ++t) require(step.slot_mapping[t] < num_slots, "step: a slot is outside the cache");
  for (int s = 0; s < step.num_seqs; ++s) {
    const int blocks = appl::divided(step.seq_lens[s], limits_.block_size);
    require(blocks <= step.block_table_stride, "step: a block table is shorter than its sequence");
    const int32_t* table = step.block_tables + size_t(s) * size_t(step.block_table_stride);
    for (int b = 0; b < blocks; ++b) require(table[b] >= 0 && table[b] < limits_.num_blocks, "step: no such block");
  }
}

uint64_t appl_program::shared_keys() const {
  for (const Group& group : groups_) {
    if (group.sees_all) return uint64_t(group.cascade.shared_keys());
  }
  return 0;
}

void appl_program::run(const appl_step& step) {
  check_step(step);
  run_operators(step, operator_seconds_);
}

void appl_program::start(const appl_step& step) {
  require(states_.empty(), "a step that changes states cannot be cancelled, so it is not started");
  require(first_spread_ < 0, "a step that other replicas run too cannot be cancelled, so it is not started");
  require(ahead_ == nullptr, "another step was started");
  check_step(step);
  ahead_seconds_.assign(operator_seconds_ == nullptr ? 0 : operators_.size(), 0.0);
  ahead_ = &step;
  is_led_ = pool_.lead([](void* program) { static_cast<appl_program*>(program)->run_ahead(); }, this);
}

void appl_program::finish() {
  require(ahead_ != nullptr, "no step was started");
  if (!is_led_) run_ahead();
  settle();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  if (operator_seconds_ == nullptr) return;
  for (size_t i = 0; i < ahead_seconds_.size(); ++i) operator_seconds_[i] += ahead_seconds_[i];
}

void appl_program::cancel() {
  if (ahead_ == nullptr) return;
  is_cancelled_.store(true, std::memory_order_relaxed);
  settle();
  is_cancelled_.store(false, std::memory_order_relaxed);
  failure_ = nullptr;
}

void appl_program::settle() {
  if (is_led_) pool_.help();
  ahead_ = nullptr;
}

void appl_program::run_ahead() noexcept {
  try {
    run_operators(*ahead_, ahead_seconds_.empty() ? nullptr : ahead_seconds_.data());
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void appl_program::run_operators(const appl_step& step, double* seconds) {
  if (first_spread_ < 0) return run_own(step, seconds);
  const appl_spread_experts& spread = operators_[size_t(first_spread_)].op.as.spread_experts;
  round_ = appl::begin_round(spread, step.num_tokens, step.num_sampled);
  try {
    run_own(step, seconds);
  } catch (...) {  // what comes next here would be another round to the others
    appl::leave_group(spread);
    throw;
  }
}

void appl_program::run_own(const appl_step& step, double* seconds) {
  if (step.num_tokens == 0) return run_states(step);
  if (max_heads_ > 0) {
    for (size_t i = 0; i < groups_.size(); ++i) {
      groups_[i].cascade.set(appl::of_group(step, int(i)), groups_[i].sees_all && shares_prefixes_);
    }
  }
  if (adapter_bytes_ > 0) {
    adapted_tokens_.set(step, APPL_TOKENS);
    adapted_samples_.set(step, APPL_SAMPLED);
  }
  if (seconds != nullptr) return run_timed(step, seconds);
  for (const Bound& bound : operators_) {
    if (is_cancelled_.load(std::memory_order_relaxed)) return;
    execute(bound, step);
  }
}

// Of a step without tokens: empty pieces copy, and other replicas may have rows for the experts that are here.
void appl_program::run_states(const appl_step& step) {
  for (const Bound& bound : operators_) {
    if (has_state(bound.op) || bound.op.kind == APPL_OP_SPREAD_EXPERTS) execute(bound, step);
  }
}

void appl_program::run_timed(const appl_step& step, double* seconds) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin = Clock::now();
  for (size_t i = 0; i < operators_.size() && !is_cancelled_.load(std::memory_order_relaxed); ++i) {
    execute(operators_[i], step);
    const Clock::time_point end = Clock::now();
    seconds[i] += std::chrono::duration<double>(end - begin).count();
    begin = end;
  }
}

void appl_program::prepare(const Bound& linear, int rows) {
  if (rows >= linear.min_rows_prepared) {
    prepared_ = next_;
    return;
  }
  uint8_t* const memory = linear.is_next ? next_memory() : prepared_memory();
  const appl_span& x = linear.op.as.linear.x;
  const auto row_of = [&x](int64_t row, int) { return x.data + size_t(row) * size_t(x.stride); };
  const auto normed_row = [&](int64_t row, int thread) {
    const appl_norm& norm = linear.norm.as.norm;
    float* const own = scratch<float>() + size_t(thread) * normed_bytes_ / sizeof(float);
    float* const out = norm.for_linear != 0 ? own : row_of(row, thread);
    appl::norm_row(linear.norm.kind, norm, row, out);
    return out;
  };
  prepared_ = linear.is_normed(rows) ? appl::prepare(pool_, linear.input, rows, memory, normed_row)
                                     : appl::prepare(pool_, linear.input, rows, memory, row_of);
}

void appl_program::execute_linear(const Bound& bound, int rows) {
  const appl_linear& op = bound.op.as.linear;
  if (rows == 0) return;
  appl::LinearCall call{op.weight, {}, nullptr, op.out.data, op.out.stride, op.bias, op.activation, op.accumulate != 0};
  if (bound.is_gated(rows)) {
    call.out = bound.gated.out.data;
    call.out_stride = bound.gated.out.stride;
    call.activation = bound.gated.activation;
    call.gated_sums = scratch<float>();
    if (rows >= bound.min_rows_for_next) {
      next_ = appl::prepared_at(bound.next, rows, next_memory());
      call.next = &next_;
    }
  }
  if (appl::reads_in_place(*op.weight, bound.input, rows)) {
    call.direct = op.x.data;
    call.input.shape = bound.input;
  } else {
    if (!bound.input_is_ready) prepare(bound, rows);
    call.input = prepared_;
  }
  appl::run_linear(pool_, call);
}

bool appl_program::is_screened(const appl_linear& op, const appl_step& step) {
  return op.screen != nullptr && step.num_largest != nullptr && step.num_sampled <= op.screen->most_rows();
}

void appl_program::execute_screened(const Bound& bound, const appl_step& step) {
  const appl_linear& op = bound.op.as.linear;
  const int rows = step.num_sampled;
  if (rows == 0) return;
  if (bound.is_normed(rows)) appl::run_norm(pool_, bound.norm.kind, bound.norm.as.norm, rows);
  const auto row_of = [&op](int64_t row, int) { return op.x.data + size_t(row) * size_t(op.x.stride); };
  uint8_t* const memory = prepared_memory();
  uint8_t* const behind = memory + appl::round_up(bound.input.bytes(rows), 64);
  const appl::Prepared input = appl::prepare(pool_, bound.input, rows, memory, row_of);
  const bool is_one = bound.rounded == bound.input;
  const appl::Prepared rounded = is_one ? input : appl::prepare(pool_, bound.rounded, rows, behind, row_of);
  pauses_.ran(appl::run_screened(
      pool_, {op.weight, op.screen, step, op.x, input, rounded, op.out.data, op.out.stride, op.first_token, scratch<uint8_t>()}));
}

void appl_program::execute(const Bound& bound, const appl_step& step) {
  const auto& as = bound.op.as;
  const auto rows = [&step](const appl_span& span) { return span.extent == APPL_TOKENS ? step.num_tokens : step.num_sampled; };
  switch (bound.op.kind) {
    case APPL_OP_EMBED: return appl::run_embed(pool_, as.embed, step);
    case APPL_OP_RMS_NORM:
    case APPL_OP_LAYER_NORM:
      if (bound.is_normed(rows(as.norm.x))) return;
      return appl::run_norm(pool_, bound.op.kind, as.norm, rows(as.norm.x));
    case APPL_OP_HEAD_NORM: return appl::run_head_norm(pool_, as.head_norm, rows(as.head_norm.x));
    case APPL_OP_LINEAR:
      if (is_screened(as.linear, step) && !pauses_.skip()) return execute_screened(bound, step);
      return execute_linear(bound, rows(as.linear.x));
    case APPL_OP_ACTIVATION: return appl::run_activation(pool_, as.pointwise, rows(as.pointwise.x));
    case APPL_OP_GATED_ACTIVATION:
      if (bound.is_gated(rows(as.gated.gate))) return;
      return appl::run_gated_activation(pool_, as.gated, rows(as.gated.gate));
    case APPL_OP_ROPE: return appl::run_rope(pool_, as.rope, step);
    case APPL_OP_KV_WRITE: {
      const appl::KvLayer& layer = layers_[size_t(as.kv_write.cache)];
      return appl::run_kv_write(pool_, as.kv_write, layer, appl::of_group(step, layer.group));
    }
    case APPL_OP_PAGED_ATTENTION: {
      const appl::KvLayer& layer = layers_[size_t(as.attention.cache)];
      const appl::Cascade& cascade = groups_[size_t(layer.group)].cascade;
      return appl::run_attention(pool_, as.attention, layer, appl::of_group(step, layer.group), cascade, scratch<uint8_t>());
    }
    case APPL_OP_WHOLE_ATTENTION: return appl::run_whole_attention(pool_, as.whole_attention, step, scratch<float>());
    case APPL_OP_COPY: return appl::run_copy(pool_, as.move, rows(as.move.x));
    case APPL_OP_ADD: return appl::run_add(pool_, as.move, rows(as.move.x));
    case APPL_OP_GATHER_ROWS: return appl::run_gather_rows(pool_, as.move, step);
    case APPL_OP_MEAN_ROWS: return appl::run_mean_rows(pool_, as.move, step);
    case APPL_OP_CHOOSE_EXPERTS: return appl::run_route(pool_, as.route, rows(as.route.logits));
    case APPL_OP_EXPERTS: return appl::run_experts(pool_, as.experts, bound.experts, rows(as.experts.x), scratch<uint8_t>());
    case APPL_OP_SPREAD_EXPERTS: {
      const appl_spread_experts& op = as.spread_experts;
      return appl::run_spread_experts(pool_, op, bound.experts, round_, rows(op.experts.x), scratch<uint8_t>());
    }
    case APPL_OP_GATED_ADD: return appl::run_gated_add(pool_, as.gated_add, rows(as.gated_add.x));
    case APPL_OP_SCALE_BY_POSITION: return appl::run_scale_by_position(pool_, as.position_scale, step);
    case APPL_OP_HEAD_LINEAR: return appl::run_head_linear(pool_, as.head_linear, bound.heads, rows(as.head_linear.x), scratch<uint8_t>());
    case APPL_OP_SCALE: return appl::run_scale(pool_, as.scale, rows(as.scale.x));
    case APPL_OP_SOFT_CAP: return appl::run_soft_cap(pool_, as.soft_cap, rows(as.soft_cap.x));
    case APPL_OP_SCALE_BY_WEIGHT: return appl::run_scale_by_weight(pool_, as.weight_scale, rows(as.weight_scale.x));
    case APPL_OP_GAUSSIAN_TOP_K: return appl::run_gaussian_top_k(pool_, as.top_k, rows(as.top_k.x));
    case APPL_OP_MIX_STREAMS: return appl::run_mix_streams(pool_, as.streams, rows(as.streams.coefficients));
    case APPL_OP_CORRECT_STREAMS: return appl::run_correct_streams(pool_, as.streams, rows(as.streams.coefficients));
    case APPL_OP_MATCH_MAGNITUDE: return appl::run_match_magnitude(pool_, as.magnitude, rows(as.magnitude.x));
    case APPL_OP_ADAPTER_LINEAR: return appl::run_adapter_linear(pool_, as.adapter_linear, adapted(as.adapter_linear.x), scratch<float>());
    case APPL_OP_ADAPTER_EMBED: return appl::run_adapter_embed(pool_, as.adapter_embed, adapted_tokens_, step);
    case APPL_OP_ADAPTER_EXPERTS: {
      const appl_span& x = as.adapter_experts.experts.x;
      return appl::run_adapter_experts(pool_, as.adapter_experts, adapted(x), bound.experts, rows(x), scratch<uint8_t>());
    }
    case APPL_OP_SHORT_CONV:
      return appl::run_short_conv(pool_, as.short_conv, states_[size_t(as.short_conv.state)], bound.constants.data(), step,
                                  scratch<float>());
    case APPL_OP_GATED_DELTA:
      return appl::run_gated_delta(pool_, as.gated_delta, states_[size_t(as.gated_delta.state)], step, scratch<float>());
    case APPL_OP_STATE_SPACE:
      return appl::run_state_space(pool_, as.state_space, states_[size_t(as.state_space.state)], bound.constants.data(), step,
                                   scratch<float>());
    case APPL_OP_RG_LRU: return appl::run_rg_lru(pool_, as.rg_lru, states_[size_t(as.rg_lru.state)], step);
    case APPL_OP_MIX_EXPERTS: return appl::run_mix_experts(pool_, as.mix_experts, rows(as.mix_experts.x));
    case APPL_OP_PLACE_EXPERTS: return appl::run_place_experts(as.place_experts, rows(as.place_experts.experts));
    case APPL_OP_GATHER:
    case APPL_OP_MEET: return appl::run_meeting(as.meeting);
    default: return;
  }
}

void appl_program::copy_blocks(const int32_t* pairs, int num_pairs) {
  for (int i = 0; i < 2 * num_pairs; ++i) require(pairs[i] >= 0 && pairs[i] < limits_.num_blocks, "copy: no such block");
  for (size_t i = 0; i < layers_.size(); ++i) {
    const appl::KvLayer& layer = layers_[i];
    const auto is_same_lane = [&layer](const appl::KvLayer& other) { return other.keys == layer.keys; };
    if (std::any_of(layers_.begin(), layers_.begin() + ptrdiff_t(i), is_same_lane)) continue;  // copied already
    const auto copy = [&](uint8_t* blocks, size_t bytes) {
      for (int pair = 0; pair < num_pairs; ++pair) {
        std::memmove(blocks + size_t(pairs[2 * pair + 1]) * bytes, blocks + size_t(pairs[2 * pair]) * bytes, bytes);
      }
    };
    copy(layer.keys, layer.geometry.key_stride);
    if (!layer.geometry.values_in_keys) copy(layer.values, layer.geometry.value_stride);
  }
}
