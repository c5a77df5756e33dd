#include <initializer_list>

#include "lockstep.h"
#include "program.h"
#include "ranks.h"
#include "screen.h"
#include "elementwise.h"
#include "states.h"
#include "status.h"

namespace appl {
namespace {

void check_span(const appl_span& span) {
  require(span.data != nullptr, "a span has no data");
  require(span.width > 0 && span.stride >= span.width, "a span is wider than its stride");
  require(span.extent == APPL_TOKENS || span.extent == APPL_SAMPLED, "a span has an unknown extent");
}

void check_same_rows(const appl_span& a, const appl_span& b) {
  check_span(a);
  check_span(b);
  require(a.extent == b.extent, "spans of one operator differ in extent");
}

void check_same_shape(const appl_span& a, const appl_span& b) {
  check_same_rows(a, b);
  require(a.width == b.width, "spans of one operator differ in width");
}

void check_activation(int32_t kind) { require(kind >= APPL_ACTIVATION_NONE && kind <= APPL_ACTIVATION_SIGMOID, "unknown activation"); }

void check_pointwise(const appl_pointwise& op) {
  check_same_shape(op.x, op.out);
  const bool is_learned = op.activation == APPL_ACTIVATION_XIELU;
  if (!is_learned) check_activation(op.activation);
  require(is_learned == (op.parameters != nullptr), "activation: parameters are missing, or its kind has none");
}

const KvLayer& cache_at(const std::vector<KvLayer>& caches, int32_t cache) {
  require(cache >= 0 && size_t(cache) < caches.size(), "an operator names a cache that is not there");
  return caches[size_t(cache)];
}

void check_embed(const appl_embed& op, const appl_limits& limits) {
  check_span(op.out);
  require(op.out.extent == APPL_TOKENS, "embed writes one row a token");
  require(op.table != nullptr && op.table->columns == op.out.width, "embed: the table's width differs from the slot's");
  require(op.type_table == nullptr || op.num_types > 0, "embed: a table of types without rows");
  require(op.missing_row < num_tokens(op), "embed: the row of missing tokens is missing too");
  require(op.first_own >= 0 && op.table->rows <= num_tokens(op) - op.first_own, "embed: a rank has rows that are not there");
  if (op.position_table == nullptr) return;
  require(op.position_table->columns == op.out.width, "embed: the position table's width differs from the slot's");
  require(op.position_offset >= 0 && limits.max_model_len <= op.position_table->rows - op.position_offset,
          "embed: the position table is shorter than max_model_len");
}

void check_whole_attention(const appl_whole_attention& op, const appl_limits& limits) {
  check_same_shape(op.q, op.out);
  check_same_shape(op.k, op.v);
  check_same_rows(op.q, op.k);
  require(op.q.extent == APPL_TOKENS && op.head_dim > 0 && op.num_kv_heads > 0 && op.num_heads > 0 && op.num_heads % op.num_kv_heads == 0,
          "whole_attention: num_heads is no multiple of num_kv_heads");
  require(op.q.width == op.num_heads * op.head_dim && op.k.width == op.num_kv_heads * op.head_dim,
          "whole_attention: a span is not as wide as its heads");
  require(op.bias == nullptr || op.bias_reach >= limits.max_model_len, "whole_attention: the bias is shorter than max_model_len");
}

void check_norm(const appl_norm& op) {
  check_same_shape(op.x, op.out);
  if (op.residual.data != nullptr) check_same_shape(op.x, op.residual);
}

void check_linear(const appl_linear& op) {
  check_same_rows(op.x, op.out);
  require(op.weight != nullptr, "a linear has no weight");
  require(op.x.width == op.weight->columns, "linear: the input's width differs from the weight's columns");
  require(op.out.width == op.weight->rows, "linear: the output's width differs from the weight's rows");
  check_activation(op.activation);
  if (op.screen == nullptr) return;
  require(op.screen->codes->rows == op.weight->rows && op.screen->codes->columns == op.weight->columns,
          "linear: the screen is of another weight");
  require(op.bias == nullptr && op.activation == APPL_ACTIVATION_NONE && op.accumulate == 0, "linear: what has a screen only multiplies");
}

void check_rope(const appl_rope& op, const appl_limits& limits) {
  check_span(op.x);
  require(op.x.extent == APPL_TOKENS && op.table != nullptr, "rope: needs a table and token rows");
  require(op.num_heads > 0 && op.x.width == op.num_heads * op.head_dim, "rope: the span is not num_heads * head_dim wide");
  require(op.rotary_dim > 0 && op.rotary_dim % 2 == 0 && op.rotary_dim <= op.head_dim, "rope: bad rotary_dim");
  require(op.table_rows >= limits.max_model_len, "rope: the table is shorter than max_model_len");
}

void check_head_norm(const appl_head_norm& op) {
  check_same_shape(op.x, op.out);
  require(op.num_heads > 0 && op.x.width == op.num_heads * op.head_dim, "head_norm: the span is not num_heads * head_dim wide");
}

void check_weight_scale(const appl_weight_scale& op) {
  check_same_shape(op.x, op.out);
  require(op.weight != nullptr, "scale_by_weight has no weight");
}

void check_streams(const appl_streams& op, bool has_target) {
  const int count = op.num_streams;
  require(count > 0 && count <= APPL_MAX_STREAMS, "streams: none, or more than there are places for");
  for (int i = 0; i < count; ++i) check_same_shape(op.streams[0], op.streams[i]);
  check_same_rows(op.streams[0], op.coefficients);
  require(op.coefficients.width == (has_target ? count : count * count), "streams: the coefficients have another width");
  if (has_target) check_same_shape(op.streams[0], op.target);
}

void check_kv_write(const appl_kv_write& op, const std::vector<KvLayer>& layers) {
  check_span(op.k);
  const KvGeometry& g = cache_at(layers, op.cache).geometry;
  require(op.k.extent == APPL_TOKENS && op.k.width == g.num_kv_heads * g.key_dim, "kv_write: the keys are not num_kv_heads * key_dim wide");
  require((op.v.data == nullptr) == g.values_in_keys, "kv_write: values are given where the cache has none, or none where it has them");
  if (g.values_in_keys) return;
  check_same_rows(op.k, op.v);
  require(op.v.width == g.num_kv_heads * g.value_dim, "kv_write: the values are not num_kv_heads * value_dim wide");
}

void check_attention(const appl_attention& op, const std::vector<KvLayer>& layers) {
  check_same_rows(op.q, op.out);
  const KvGeometry& g = cache_at(layers, op.cache).geometry;
  require(op.q.extent == APPL_TOKENS && op.num_heads > 0 && op.num_heads % g.num_kv_heads == 0,
          "attention: num_heads is no multiple of num_kv_heads");
  require(op.q.width == op.num_heads * g.key_dim, "attention: the queries are not num_heads * key_dim wide");
  require(op.out.width == op.num_heads * g.value_dim, "attention: the output is not num_heads * value_dim wide");
  require(op.window >= 0 && op.chunk >= 0 && op.soft_cap >= 0, "attention: negative window, chunk or soft_cap");
  require(op.window == 0 || op.chunk == 0, "attention: a window and chunks do not go together");
}

void check_route(const appl_route& op) {
  check_same_rows(op.logits, op.experts);
  check_same_shape(op.experts, op.factors);
  check_same_rows(op.logits, op.factors);
  const int experts = op.logits.width, groups = op.num_groups;
  require(experts <= kMaxExperts, "route: more experts than can be chosen from");
  require(op.scoring >= APPL_SCORING_SOFTMAX && op.scoring <= APPL_SCORING_SPARSEMIXER, "route: unknown scoring");
  require(groups > 0 && experts % groups == 0 && op.num_chosen_groups > 0 && op.num_chosen_groups <= groups, "route: bad groups");
  require(op.experts.width <= op.num_chosen_groups * (experts / groups), "route: fewer experts than are to be chosen");
  require(op.scoring != APPL_SCORING_SPARSEMIXER || (groups == 1 && op.correction == nullptr && op.jitter >= 0),
          "route: sparsemixer has no groups and no correction, and a jitter that is not negative");
}

// Experts are views of their weights: they begin with a panel.
void check_expert_rows(const appl_weight* weight, int num_experts, int rows, int columns) {
  require(weight != nullptr, "experts: a weight is missing");
  require(int64_t{num_experts} * rows == weight->rows, "experts: a weight has other rows than its experts");
  require(rows % kPanel == 0, "experts: the rows of an expert are no multiple of 16");
  require(weight->columns == columns, "experts: a weight has other columns than its input");
}

void check_experts(const appl_experts& op) {
  check_same_rows(op.x, op.out);
  check_same_rows(op.x, op.experts);
  check_same_shape(op.experts, op.factors);
  require(op.num_experts > 0 && op.width > 0 && op.experts.width <= op.num_experts, "experts: none, or fewer than are chosen");
  require(op.is_gated != 0 || op.gate == nullptr, "experts: a gate is given, and there is none");
  const bool is_joined = op.is_gated != 0 && op.gate == nullptr;
  const bool has_some = op.num_own > 0 && op.first_own >= 0 && op.first_own + op.num_own <= op.num_experts;
  require(has_some && (op.is_apart != 0 || op.num_own == op.num_experts), "experts: some are missing");
  require(op.is_apart == 0 || op.out.width % op.experts.width == 0, "experts: their outputs do not share out among the choices");
  check_expert_rows(op.up, op.num_own, is_joined ? 2 * op.width : op.width, op.x.width);
  if (op.gate != nullptr) check_expert_rows(op.gate, op.num_own, op.width, op.x.width);
  check_expert_rows(op.down, op.num_own, output_width(op), op.width);
  check_activation(op.activation);
  require(op.limit >= 0 && (op.alpha == 1.0f || op.activation == APPL_ACTIVATION_SILU), "experts: bad limit or alpha");
}

void check_mix_experts(const appl_mix_experts& op) {
  check_same_rows(op.x, op.out);
  check_same_rows(op.x, op.factors);
  require(op.x.width == op.factors.width * op.out.width, "mix_experts: the input is not as many outputs wide as there are factors");
}

void check_place_experts(const appl_place_experts& op) {
  check_same_rows(op.experts, op.out);
  check_same_shape(op.experts, op.out);
  require(op.starts != nullptr && op.places != nullptr && op.loads != nullptr, "place_experts: a table is missing");
  require(op.num_experts > 0 && op.num_places >= op.num_experts, "place_experts: fewer places than experts");
}

void check_position_scale(const appl_position_scale& op) {
  check_span(op.x);
  require(op.x.extent == APPL_TOKENS && op.length > 0 && op.offset >= 0, "scale_by_position: needs token rows and a length");
}

// The matrices of heads are views of the weight: they begin with a panel.
void check_head_linear(const appl_head_linear& op) {
  check_same_rows(op.x, op.out);
  require(op.weight != nullptr && op.num_heads > 0, "head_linear: no weight or no heads");
  require(op.weight->rows % (op.num_heads * kPanel) == 0, "head_linear: the rows of a head are no multiple of 16");
  require(op.x.width == op.num_heads * op.weight->columns, "head_linear: the input is not num_heads * columns wide");
  const bool has_tail = op.tail.data != nullptr;
  if (has_tail) check_same_rows(op.x, op.tail);
  require(!has_tail || op.tail.width % op.num_heads == 0, "head_linear: the tail's columns do not share out among the heads");
  require(op.out.width == op.weight->rows + (has_tail ? op.tail.width : 0), "head_linear: the output has another width");
}

void check_token_rows(std::initializer_list<appl_span> spans) {
  for (const appl_span& span : spans) {
    check_span(span);
    require(span.extent == APPL_TOKENS, "an operator with a state reads and writes one row a token");
  }
}

void check_state(const std::vector<appl_state>& states, int32_t state, int64_t size) {
  require(state >= 0 && size_t(state) < states.size(), "an operator names a state that is not there");
  require(int64_t(states[size_t(state)].size) == size, "a state has another size than its operator");
}

void check_short_conv(const appl_short_conv& op, const std::vector<appl_state>& states) {
  check_same_shape(op.x, op.out);
  check_token_rows({op.x});
  check_activation(op.activation);
  require(op.weight != nullptr, "short_conv has no weight");
  require(op.kernel_size >= 2 && op.kernel_size <= kMaxTaps, "short_conv: kernel_size must be 2 to 16");
  check_state(states, op.state, int64_t{op.kernel_size - 1} * op.x.width);
}

// Some heads of equal width, of which each of several times as many reads one.
void check_heads(int32_t shared, int32_t heads, const appl_span& of_shared, const appl_span& of_heads) {
  require(shared > 0 && heads > 0 && heads % shared == 0, "a state's heads are no multiple of the heads that they share");
  require(of_shared.width % shared == 0 && of_heads.width % heads == 0, "a span is no multiple of its heads");
}

void check_gated_delta(const appl_gated_delta& op, const std::vector<appl_state>& states) {
  check_same_shape(op.q, op.k);
  check_same_shape(op.v, op.out);
  check_token_rows({op.q, op.v, op.decay, op.beta});
  check_heads(op.num_key_heads, op.num_value_heads, op.k, op.v);
  const int keys = op.k.width / op.num_key_heads, values = op.v.width / op.num_value_heads;
  require(op.a_log != nullptr && op.dt_bias != nullptr, "gated_delta: a vector is missing");
  require(op.beta.width == op.num_value_heads, "gated_delta: beta is one number a head");
  require(op.decay.width == op.num_value_heads * (op.by_channel != 0 ? keys : 1), "gated_delta: decay has another width");
  check_state(states, op.state, int64_t{op.num_value_heads} * keys * values);
}

void check_state_space(const appl_state_space& op, const std::vector<appl_state>& states) {
  check_same_shape(op.x, op.out);
  check_same_shape(op.b, op.c);
  check_token_rows({op.x, op.b, op.dt});
  check_heads(op.num_groups, op.num_heads, op.b, op.x);
  require(op.a_log != nullptr && op.d != nullptr, "state_space: a vector is missing");
  require(op.dt.width == op.num_heads, "state_space: dt is one number a head");
  require(op.by_state == 0 || op.x.width == op.num_heads, "state_space: what decays by state has heads of one channel");
  require(op.dt_min <= op.dt_max, "state_space: bad limits of dt");
  check_state(states, op.state, int64_t{op.b.width / op.num_groups} * op.x.width);
}

void check_rg_lru(const appl_rg_lru& op, const std::vector<appl_state>& states) {
  check_token_rows({op.x});
  for (const appl_span& span : {op.input_gate, op.recurrence_gate, op.out}) check_same_shape(op.x, span);
  require(op.decay != nullptr && op.input_bias != nullptr && op.recurrence_bias != nullptr, "rg_lru: a vector is missing");
  check_state(states, op.state, op.x.width);
}

}  // namespace

void check_operator(const appl_operator& op, const std::vector<KvLayer>& layers, const std::vector<appl_state>& states,
                    const appl_limits& limits) {
  switch (op.kind) {
    case APPL_OP_EMBED: return check_embed(op.as.embed, limits);
    case APPL_OP_RMS_NORM:
    case APPL_OP_LAYER_NORM: return check_norm(op.as.norm);
    case APPL_OP_HEAD_NORM: return check_head_norm(op.as.head_norm);
    case APPL_OP_LINEAR: return check_linear(op.as.linear);
    case APPL_OP_ACTIVATION: return check_pointwise(op.as.pointwise);
    case APPL_OP_GATED_ACTIVATION:
      check_activation(op.as.gated.activation);
      check_same_shape(op.as.gated.gate, op.as.gated.up);
      return check_same_shape(op.as.gated.gate, op.as.gated.out);
    case APPL_OP_ROPE: return check_rope(op.as.rope, limits);
    case APPL_OP_KV_WRITE: return check_kv_write(op.as.kv_write, layers);
    case APPL_OP_PAGED_ATTENTION: return check_attention(op.as.attention, layers);
    case APPL_OP_WHOLE_ATTENTION: return check_whole_attention(op.as.whole_attention, limits);
    case APPL_OP_COPY:
    case APPL_OP_ADD: return check_same_shape(op.as.move.x, op.as.move.out);
    case APPL_OP_MEAN_ROWS:
    case APPL_OP_GATHER_ROWS:
      check_span(op.as.move.x);
      check_span(op.as.move.out);
      return require(
          op.as.move.x.width == op.as.move.out.width && op.as.move.x.extent == APPL_TOKENS && op.as.move.out.extent == APPL_SAMPLED,
          "gather_rows, mean_rows: take token rows to sampled rows of the same width");
    case APPL_OP_CHOOSE_EXPERTS: return check_route(op.as.route);
    case APPL_OP_EXPERTS: return check_experts(op.as.experts);
    case APPL_OP_SPREAD_EXPERTS: check_spread_experts(op.as.spread_experts); return check_experts(over_all(op.as.spread_experts));
    case APPL_OP_GATED_ADD:
      check_same_shape(op.as.gated_add.x, op.as.gated_add.out);
      check_same_rows(op.as.gated_add.x, op.as.gated_add.gate);
      return require(op.as.gated_add.gate.width == 1, "gated_add: a gate is one number a row");
    case APPL_OP_SCALE_BY_POSITION: return check_position_scale(op.as.position_scale);
    case APPL_OP_HEAD_LINEAR: return check_head_linear(op.as.head_linear);
    case APPL_OP_SHORT_CONV: return check_short_conv(op.as.short_conv, states);
    case APPL_OP_GATED_DELTA: return check_gated_delta(op.as.gated_delta, states);
    case APPL_OP_STATE_SPACE: return check_state_space(op.as.state_space, states);
    case APPL_OP_RG_LRU: return check_rg_lru(op.as.rg_lru, states);
    case APPL_OP_MIX_EXPERTS: return check_mix_experts(op.as.mix_experts);
    case APPL_OP_PLACE_EXPERTS: return check_place_experts(op.as.place_experts);
    case APPL_OP_GATHER: check_span(op.as.meeting.x); return check_meeting(op.as.meeting);
    case APPL_OP_MEET: return check_meeting(op.as.meeting);
    case APPL_OP_SCALE: return check_span(op.as.scale.x);
    case APPL_OP_SCALE_BY_WEIGHT: return check_weight_scale(op.as.weight_scale);
    case APPL_OP_GAUSSIAN_TOP_K: return check_span(op.as.top_k.x);
    case APPL_OP_MIX_STREAMS: return check_streams(op.as.streams, false);
    case APPL_OP_CORRECT_STREAMS: return check_streams(op.as.streams, true);
    case APPL_OP_MATCH_MAGNITUDE:
      check_same_shape(op.as.magnitude.x, op.as.magnitude.reference);
      return require(op.as.magnitude.least > 0, "match_magnitude: the least is not positive");
    case APPL_OP_ADAPTER_LINEAR: return check_adapter_linear(op.as.adapter_linear);
    case APPL_OP_ADAPTER_EMBED: return check_adapter_embed(op.as.adapter_embed);
    case APPL_OP_ADAPTER_EXPERTS: check_experts(op.as.adapter_experts.experts); return check_adapter_experts(op.as.adapter_experts);
    case APPL_OP_SOFT_CAP: check_span(op.as.soft_cap.x); return require(op.as.soft_cap.cap > 0, "soft_cap: the cap is not positive");
    default: throw Error(APPL_UNSUPPORTED, "unknown operator kind");
  }
}

namespace {

Written all_of(const appl_streams& op) {
  Written written{{}, op.num_streams};
  for (int i = 0; i < op.num_streams; ++i) written.spans[i] = op.streams[i];
  return written;
}

}  // namespace

Written written_by(const appl_operator& op) {
  switch (op.kind) {
    case APPL_OP_EMBED: return {{op.as.embed.out, {}}, 1};
    case APPL_OP_RMS_NORM:
    case APPL_OP_LAYER_NORM: return {{op.as.norm.out, op.as.norm.residual}, op.as.norm.residual.data != nullptr ? 2 : 1};
    case APPL_OP_HEAD_NORM: return {{op.as.head_norm.out, {}}, 1};
    case APPL_OP_LINEAR: return {{op.as.linear.out, {}}, 1};
    case APPL_OP_ACTIVATION: return {{op.as.pointwise.out, {}}, 1};
    case APPL_OP_GATED_ACTIVATION: return {{op.as.gated.out, {}}, 1};
    case APPL_OP_ROPE: return {{op.as.rope.x, {}}, 1};
    case APPL_OP_PAGED_ATTENTION: return {{op.as.attention.out, {}}, 1};
    case APPL_OP_WHOLE_ATTENTION: return {{op.as.whole_attention.out, {}}, 1};
    case APPL_OP_COPY:
    case APPL_OP_ADD:
    case APPL_OP_MEAN_ROWS:
    case APPL_OP_GATHER_ROWS: return {{op.as.move.out, {}}, 1};
    case APPL_OP_CHOOSE_EXPERTS: return {{op.as.route.experts, op.as.route.factors}, 2};
    case APPL_OP_EXPERTS: return {{op.as.experts.out, {}}, 1};
    case APPL_OP_SPREAD_EXPERTS: return {{op.as.spread_experts.experts.out, {}}, 1};
    case APPL_OP_GATED_ADD: return {{op.as.gated_add.out, {}}, 1};
    case APPL_OP_SCALE_BY_POSITION: return {{op.as.position_scale.x, {}}, 1};
    case APPL_OP_HEAD_LINEAR: return {{op.as.head_linear.out, {}}, 1};
    case APPL_OP_SCALE: return {{op.as.scale.x, {}}, 1};
    case APPL_OP_SOFT_CAP: return {{op.as.soft_cap.x, {}}, 1};
    case APPL_OP_SCALE_BY_WEIGHT: return {{op.as.weight_scale.out, {}}, 1};
    case APPL_OP_GAUSSIAN_TOP_K: return {{op.as.top_k.x, {}}, 1};
    case APPL_OP_MIX_STREAMS:
    case APPL_OP_CORRECT_STREAMS: return all_of(op.as.streams);
    case APPL_OP_MATCH_MAGNITUDE: return {{op.as.magnitude.x, {}}, 1};
    case APPL_OP_ADAPTER_LINEAR: return {{op.as.adapter_linear.out, {}}, 1};
    case APPL_OP_ADAPTER_EMBED: return {{op.as.adapter_embed.out, {}}, 1};
    case APPL_OP_ADAPTER_EXPERTS: return {{op.as.adapter_experts.experts.out, {}}, 1};
    case APPL_OP_SHORT_CONV: return {{op.as.short_conv.out, {}}, 1};
    case APPL_OP_GATED_DELTA: return {{op.as.gated_delta.out, {}}, 1};
    case APPL_OP_STATE_SPACE: return {{op.as.state_space.out, {}}, 1};
    case APPL_OP_RG_LRU: return {{op.as.rg_lru.out, {}}, 1};
    case APPL_OP_MIX_EXPERTS: return {{op.as.mix_experts.out, {}}, 1};
    case APPL_OP_PLACE_EXPERTS: return {{op.as.place_experts.out, {}}, 1};
    case APPL_OP_GATHER: return {{op.as.meeting.x, {}}, 1};
    default: return {{}, 0};
  }
}

}  // namespace appl
