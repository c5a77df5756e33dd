"""The ctypes mirror of kernels/include/appliance_abi.h. Field names and order are those of the header."""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_double, c_int32, c_uint64, c_void_p

from appliance.kernels.cpu.operator_structs import Operator
from appliance.kernels.cpu.sampling_abi import SamplingCall

INVALID_ARGUMENT, RANK_FAILED = 1, 4  # of appl_status
ABI_VERSION = 26

LAYOUTS = {
    "f32": 0, "f16": 1, "bf16": 2, "int8": 3, "int4": 4, "int5": 5, "int6": 6,
    "f8": 7, "e2m1": 8, "nf4": 9, "fp4": 10, "iq4_nl": 11,
}  # fmt: skip
KV_LAYOUTS = {"f32": 0, "f16": 1, "bf16": 2, "int8": 3, "fp8_e4m3": 7, "fp8_e5m2": 12}
SCALE_TYPES = {2: 0, 4: 1, 1: 2}  # by bytes: f16, f32, e8m0
LAYOUT_NAMES = {number: name for name, number in LAYOUTS.items()}


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
        *((name, c_void_p) for name in ("adapter_slots", "adapter_scales", "embeds", "embed_of")),
        *((name, c_int32) for name in ("num_embeds", "embeds_width")),
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
    "appl_pool_bind": (c_int32, (c_void_p, POINTER(c_int32), c_int32)),
    "appl_prefer_nodes": (c_int32, (POINTER(c_int32), c_int32)),
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
