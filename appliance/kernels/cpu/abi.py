"""The ctypes mirror of kernels/include/appliance_abi.h. Field names and order are those of the header."""

import ctypes
from ctypes import POINTER, Structure, Union, c_char_p, c_double, c_float, c_int32, c_uint64, c_void_p

from appliance.kernels.cpu.sampling_abi import SamplingCall

INVALID_ARGUMENT = 1  # an appl_status
ABI_VERSION = 19
MAX_STREAMS = 8

LAYOUTS = {
    "f32": 0, "f16": 1, "bf16": 2, "int8": 3, "int4": 4, "int5": 5, "int6": 6,
    "f8": 7, "e2m1": 8, "nf4": 9, "fp4": 10, "iq4_nl": 11,
}  # fmt: skip
SCALE_TYPES = {2: 0, 4: 1, 1: 2}  # by bytes: f16, f32, e8m0
LAYOUT_NAMES = {number: name for name, number in LAYOUTS.items()}
EXTENTS = {"tokens": 0, "sampled": 1}
ACTIVATIONS = {None: 0, "silu": 1, "gelu": 2, "gelu_tanh": 3, "relu": 4, "relu2": 5, "sigmoid": 6, "xielu": 7}
SCORINGS = {"softmax": 0, "sigmoid": 1, "softmax_of_chosen": 2, "sparsemixer": 3}


class Matrix(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("layout", "rows", "columns", "group_size", "scale_type", "sub_group_size")),
        *((name, c_void_p) for name in ("data", "scale", "offset", "sub_scale", "sub_offset")),
    ]
    arrays: object  # what the addresses point into


class PackedForm(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("layout", "rows", "columns", "group_size")),
        *((name, c_int32) for name in ("scale_type", "has_offset", "zero_point", "sub_group_size")),
        ("bytes", c_uint64),
    ]


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
        *((name, c_int32) for name in ("num_types", "missing_row")),
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
    """The addresses of one adapter's maps at one place; 0 where it has none."""

    _fields_ = [(name, c_void_p) for name in ("down", "up", "ranks")]


class AdapterLinear(Structure):
    _fields_ = [
        *((name, Span) for name in ("x", "out")),
        *((name, c_void_p) for name in ("widths", "maps")),
        *((name, c_int32) for name in ("num_parts", "num_slots", "max_rank", "layout")),
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
    ]


class Operator(Structure):
    _fields_ = [("kind", c_int32), ("reserved", c_int32), ("arguments", _Arguments)]


class KvCache(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("keys", "values")),
        *((name, c_uint64) for name in ("key_block_bytes", "value_block_bytes")),
        *((name, c_int32) for name in ("num_kv_heads", "key_dim", "value_dim", "group")),
    ]


class State(Structure):
    _fields_ = [("data", c_void_p), ("size", c_uint64)]


class Limits(Structure):
    _fields_ = [
        (name, c_int32)
        for name in (
            "max_tokens",
            "max_seqs",
            "max_sampled",
            "max_model_len",
            "block_size",
            "num_blocks",
            "kv_layout",
            "quantize_activations",
            "num_states",
        )
    ]


STEP_ARRAYS = (
    "token_ids",
    "positions",
    "slot_mapping",
    "query_start",
    "seq_lens",
    "block_tables",
    "sampled_rows",
)

PIECE_ARRAYS = ("first", "start", "source", "target")  # of StatePieces


class Step(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("num_tokens", "num_seqs", "num_sampled", "block_table_stride")),
        *((name, c_int32) for name in ("num_groups", "num_pieces")),
        *((name, c_void_p) for name in STEP_ARRAYS),
        ("num_largest", c_void_p),
        *((name, c_int32) for name in ("past_rows", "past_stride")),
        *((name, c_void_p) for name in ("past_table", "past_row", "num_past")),
        *((f"piece_{name}", c_void_p) for name in PIECE_ARRAYS),
        ("token_types", c_void_p),
        *((name, c_void_p) for name in ("adapter_slots", "adapter_scales")),
    ]


class Rates(Structure):
    """The best and the mean rate of a probe's repetitions, per second."""

    _fields_ = [("best", c_double), ("mean", c_double)]
    best: float
    mean: float


_FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "appl_abi_version": (c_int32, ()),
    "appl_level": (c_char_p, ()),
    "appl_last_error": (c_char_p, ()),
    "appl_pool_create": (c_int32, (c_int32, POINTER(c_void_p))),
    "appl_pool_destroy": (None, (c_void_p,)),
    "appl_weight_pack": (c_int32, (c_void_p, POINTER(Matrix), POINTER(c_void_p))),
    "appl_weight_destroy": (None, (c_void_p,)),
    "appl_weight_bytes": (c_uint64, (c_void_p,)),
    "appl_weight_form_of": (c_int32, (POINTER(Matrix), c_int32, POINTER(PackedForm))),
    "appl_weight_reserve": (c_int32, (c_void_p, POINTER(PackedForm), POINTER(c_void_p))),
    "appl_weight_fill": (c_int32, (c_void_p, c_int32, POINTER(Matrix))),
    "appl_screen_create": (c_int32, (c_void_p, c_void_p, POINTER(c_void_p))),
    "appl_screen_destroy": (None, (c_void_p,)),
    "appl_screen_bytes": (c_uint64, (c_void_p,)),
    "appl_screen_most_rows": (c_int32, (c_void_p,)),
    "appl_packed_version": (c_int32, ()),
    "appl_weight_form": (None, (c_void_p, POINTER(PackedForm))),
    "appl_weight_panels": (c_void_p, (c_void_p,)),
    "appl_weight_adopt": (c_int32, (POINTER(PackedForm), c_void_p, POINTER(c_void_p))),
    "appl_checksum": (c_int32, (c_void_p, c_void_p, c_uint64, POINTER(c_uint64))),
    "appl_kv_block_bytes": (c_uint64, (POINTER(Limits), c_int32, c_int32)),
    "appl_program_create": (
        c_int32,
        (
            *(c_void_p, POINTER(Operator), c_int32, POINTER(KvCache), c_int32, POINTER(State), c_int32),
            *(POINTER(Limits), POINTER(c_void_p)),
        ),
    ),
    "appl_program_destroy": (None, (c_void_p,)),
    "appl_program_share_workspace": (None, (c_void_p, c_void_p)),
    "appl_program_workspace_bytes": (c_uint64, (c_void_p,)),
    "appl_program_run": (c_int32, (c_void_p, POINTER(Step))),
    "appl_program_start": (c_int32, (c_void_p, POINTER(Step))),
    "appl_program_finish": (c_int32, (c_void_p,)),
    "appl_program_cancel": (None, (c_void_p,)),
    "appl_program_time_operators": (None, (c_void_p, c_void_p)),
    "appl_program_shared_keys": (c_uint64, (c_void_p,)),
    "appl_program_copy_blocks": (c_int32, (c_void_p, c_void_p, c_int32)),
    "appl_sample": (c_int32, (c_void_p, POINTER(SamplingCall))),
    "appl_measure_read": (c_int32, (c_void_p, c_uint64, c_double, POINTER(Rates))),
    "appl_measure_peak": (c_int32, (c_void_p, c_int32, c_double, POINTER(Rates))),
}


def declare(library: ctypes.CDLL) -> None:
    """Sets the types of every function of the library. Raises AttributeError if one is missing."""
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
