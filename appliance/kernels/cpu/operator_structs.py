"""The ctypes mirror of the operators in kernels/include/appliance_abi.h: a structure for the arguments of each kind.

Field names and order are those of the header.
"""

from ctypes import Structure, Union, c_float, c_int32, c_void_p

MAX_STREAMS = 8
EXTENTS = {"tokens": 0, "sampled": 1}
ACTIVATIONS = {None: 0, "silu": 1, "gelu": 2, "gelu_tanh": 3, "relu": 4, "relu2": 5, "sigmoid": 6, "xielu": 7}
SCORINGS = {"softmax": 0, "sigmoid": 1, "softmax_of_chosen": 2, "sparsemixer": 3}


class Span(Structure):
    _fields_ = [("data", c_void_p), *((name, c_int32) for name in ("stride", "width", "extent", "reserved"))]


class Embed(Structure):
    _fields_ = [
        ("table", c_void_p),
        ("position_table", c_void_p),
        ("out", Span),
        ("scale", c_float),
        ("position_offset", c_int32),
        ("type_table", c_void_p),
        *((name, c_int32) for name in ("num_types", "missing_row", "first_own", "num_tokens", "takes_given")),
        ("given_scale", c_float),
    ]


class Norm(Structure):
    _fields_ = [
        *((name, Span) for name in ("x", "out", "residual")),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("eps", c_float),
        ("scale", c_float),
        ("for_linear", c_int32),
        ("reserved", c_int32),
    ]


class HeadNorm(Structure):
    _fields_ = [
        ("x", Span),
        ("out", Span),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("num_heads", c_int32),
        ("head_dim", c_int32),
        ("eps", c_float),
        *((name, c_int32) for name in ("is_layer_norm", "by_head", "reserved")),
    ]


class Linear(Structure):
    _fields_ = [
        ("x", Span),
        ("out", Span),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("activation", c_int32),
        ("accumulate", c_int32),
        ("screen", c_void_p),
        *((name, c_int32) for name in ("first_token", "reserved")),
    ]


class Pointwise(Structure):
    _fields_ = [
        *((name, Span) for name in ("x", "out")),
        ("parameters", c_void_p),
        *((name, c_int32) for name in ("activation", "reserved")),
    ]


class Gated(Structure):
    _fields_ = [
        *((name, Span) for name in ("gate", "up", "out")),
        *((name, c_int32) for name in ("activation", "from_linear", "for_linear", "reserved")),
    ]


class Rope(Structure):
    _fields_ = [
        ("x", Span),
        ("table", c_void_p),
        *((n, c_int32) for n in ("table_rows", "num_heads", "head_dim", "rotary_dim", "interleaved", "reserved")),
    ]


class KvWrite(Structure):
    _fields_ = [("k", Span), ("v", Span), ("cache", c_int32), ("reserved", c_int32)]


class Attention(Structure):
    _fields_ = [
        ("q", Span),
        ("out", Span),
        *((name, c_int32) for name in ("cache", "num_heads", "window")),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("chunk", c_int32),
        ("sinks", c_void_p),
        ("slopes", c_void_p),
    ]


class WholeAttention(Structure):
    _fields_ = [
        *((name, Span) for name in ("q", "k", "v", "out")),
        *((name, c_int32) for name in ("num_heads", "num_kv_heads", "head_dim", "before", "after")),
        ("scale", c_float),
        ("bias", c_void_p),
        *((name, c_int32) for name in ("bias_reach", "reserved")),
    ]


class Move(Structure):
    _fields_ = [("x", Span), ("out", Span)]


class SoftCap(Structure):
    _fields_ = [("x", Span), ("cap", c_float), ("reserved", c_int32)]


class Scale(Structure):
    _fields_ = [("x", Span), ("factor", c_float), ("reserved", c_int32)]


class WeightScale(Structure):
    _fields_ = [("x", Span), ("out", Span), ("weight", c_void_p), ("is_one", c_int32), ("reserved", c_int32)]


class TopK(Structure):
    _fields_ = [("x", Span), ("num_deviations", c_float), ("reserved", c_int32)]


class Streams(Structure):
    _fields_ = [
        ("streams", Span * MAX_STREAMS),
        *((name, Span) for name in ("coefficients", "target")),
        *((name, c_int32) for name in ("num_streams", "reserved")),
    ]


class Magnitude(Structure):
    _fields_ = [("x", Span), ("reference", Span), ("least", c_float), ("reserved", c_int32)]


class Route(Structure):
    _fields_ = [
        *((name, Span) for name in ("logits", "experts", "factors")),
        ("correction", c_void_p),
        ("expert_scale", c_void_p),
        *((n, c_int32) for n in ("scoring", "renormalize", "num_groups", "num_chosen_groups", "adds_two")),
        *((name, c_float) for name in ("scale", "jitter")),
        ("reserved", c_int32),
    ]


class Experts(Structure):
    _fields_ = [
        *((name, Span) for name in ("x", "experts", "factors", "out")),
        *((name, c_void_p) for name in ("gate", "up", "down", "gate_bias", "up_bias", "down_bias")),
        *((name, c_int32) for name in ("num_experts", "width", "activation", "is_gated", "weigh_input")),
        *((name, c_float) for name in ("limit", "alpha", "up_offset")),
        *((name, c_int32) for name in ("first_own", "num_own", "is_apart", "reserved")),
    ]


class SpreadExperts(Structure):
    _fields_ = [
        ("experts", Experts),
        *((name, c_void_p) for name in ("page", "x", "factors", "outputs", "chosen")),
        *((name, c_int32) for name in ("rank", "num_ranks", "ranks_each", "timeout_ms", "max_rows", "reserved")),
    ]


class MixExperts(Structure):
    _fields_ = [
        *((name, Span) for name in ("x", "factors", "out")),
        *((name, c_int32) for name in ("weigh_input", "reserved")),
    ]


class PlaceExperts(Structure):
    _fields_ = [
        *((name, Span) for name in ("experts", "out")),
        *((name, c_void_p) for name in ("starts", "places", "loads")),
        *((name, c_int32) for name in ("num_experts", "num_places")),
    ]


class GatedAdd(Structure):
    _fields_ = [(name, Span) for name in ("x", "gate", "out")]


class PositionScale(Structure):
    _fields_ = [("x", Span), ("length", c_int32), ("offset", c_int32), ("scale", c_float), ("reserved", c_int32)]


class HeadLinear(Structure):
    _fields_ = [
        *((name, Span) for name in ("x", "out", "tail")),
        ("weight", c_void_p),
        ("num_heads", c_int32),
        ("reserved", c_int32),
    ]


class ShortConv(Structure):
    _fields_ = [
        *((name, Span) for name in ("x", "out")),
        *((name, c_void_p) for name in ("weight", "bias")),
        *((name, c_int32) for name in ("state", "kernel_size", "activation", "reserved")),
    ]


class GatedDelta(Structure):
    _fields_ = [
        *((name, Span) for name in ("q", "k", "v", "decay", "beta", "out")),
        *((name, c_void_p) for name in ("a_log", "dt_bias")),
        *((name, c_int32) for name in ("state", "num_key_heads", "num_value_heads", "by_channel")),
        *((name, c_float) for name in ("beta_scale", "reserved")),
    ]


class StateSpace(Structure):
    _fields_ = [
        *((name, Span) for name in ("x", "b", "c", "dt", "out")),
        *((name, c_void_p) for name in ("a_log", "d", "dt_bias")),
        *((name, c_int32) for name in ("state", "num_heads", "num_groups", "by_state")),
        *((name, c_float) for name in ("dt_min", "dt_max")),
    ]


class RgLru(Structure):
    _fields_ = [
        *((name, Span) for name in ("x", "input_gate", "recurrence_gate", "out")),
        *((name, c_void_p) for name in ("decay", "input_bias", "recurrence_bias")),
        *((name, c_int32) for name in ("state", "reserved")),
    ]


class AdapterMap(Structure):
    """The addresses of one adapter's change at one place; `ranks` is 0 where it has none."""

    _fields_ = [
        *((name, c_void_p) for name in ("down", "up", "stretch", "shift", "ranks")),
        *((name, c_int32) for name in ("is_whole", "reserved")),
    ]


class AdapterLinear(Structure):
    _fields_ = [
        *((name, Span) for name in ("x", "out")),
        *((name, c_void_p) for name in ("widths", "maps")),
        *((name, c_int32) for name in ("num_parts", "num_slots", "max_rank", "layout")),
    ]


class AdapterEmbed(Structure):
    _fields_ = [
        ("out", Span),
        ("maps", c_void_p),
        *((name, c_int32) for name in ("num_tokens", "num_slots", "max_rank", "layout")),
        ("scale", c_float),
        ("reserved", c_int32),
    ]


class AdapterExperts(Structure):
    _fields_ = [
        ("experts", Experts),
        ("maps", c_void_p),
        *((name, c_int32) for name in ("num_slots", "max_rank", "layout", "reserved")),
    ]


class Meeting(Structure):
    _fields_ = [
        ("x", Span),
        ("page", c_void_p),
        *((name, c_int32) for name in ("rank", "num_ranks", "timeout_ms", "reserved")),
    ]


class _Arguments(Union):
    _fields_ = [
        ("embed", Embed),
        ("norm", Norm),
        ("head_norm", HeadNorm),
        ("linear", Linear),
        ("pointwise", Pointwise),
        ("gated", Gated),
        ("rope", Rope),
        ("kv_write", KvWrite),
        ("attention", Attention),
        ("move", Move),
        ("soft_cap", SoftCap),
        ("route", Route),
        ("experts", Experts),
        ("gated_add", GatedAdd),
        ("position_scale", PositionScale),
        ("head_linear", HeadLinear),
        ("short_conv", ShortConv),
        ("gated_delta", GatedDelta),
        ("state_space", StateSpace),
        ("scale", Scale),
        ("whole_attention", WholeAttention),
        ("weight_scale", WeightScale),
        ("top_k", TopK),
        ("streams", Streams),
        ("magnitude", Magnitude),
        ("rg_lru", RgLru),
        ("adapter_linear", AdapterLinear),
        ("adapter_embed", AdapterEmbed),
        ("adapter_experts", AdapterExperts),
        ("meeting", Meeting),
        ("mix_experts", MixExperts),
        ("place_experts", PlaceExperts),
        ("spread_experts", SpreadExperts),
    ]


class Operator(Structure):
    _fields_ = [("kind", c_int32), ("reserved", c_int32), ("arguments", _Arguments)]
