"""The storage of tensors: block sizes, and the type numbers and names of GGUF and safetensors."""

import math

from appliance.checkpoint.facts import Storage

# Elements and bytes of one block of each storage that file headers name. Plain types have one element per block. The
# figures are those of ggml's type traits.
BLOCKS: dict[Storage, tuple[int, int]] = {
    "f64": (1, 8),
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "f8_e4m3": (1, 1),
    "f8_e5m2": (1, 1),
    "i8": (1, 1),
    "i16": (1, 2),
    "i32": (1, 4),
    "i64": (1, 8),
    "u8": (1, 1),
    "bool": (1, 1),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q2_k": (256, 84),
    "q3_k": (256, 110),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
    "iq4_nl": (32, 18),
    "iq4_xs": (256, 136),
    "iq1_s": (256, 50),
    "iq1_m": (256, 56),
    "iq2_xxs": (256, 66),
    "iq2_xs": (256, 74),
    "iq2_s": (256, 82),
    "iq3_xxs": (256, 98),
    "iq3_s": (256, 110),
    "q1_0": (128, 18),
    "q2_0": (64, 18),
    "tq1_0": (256, 54),
    "tq2_0": (256, 66),
    "mxfp4": (32, 17),
}

GGML_TYPES: dict[int, Storage] = {
    0: "f32",
    1: "f16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    10: "q2_k",
    11: "q3_k",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    20: "iq4_nl",
    21: "iq3_s",
    22: "iq2_s",
    23: "iq4_xs",
    24: "i8",
    25: "i16",
    26: "i32",
    27: "i64",
    28: "f64",
    29: "iq1_m",
    30: "bf16",
    34: "tq1_0",
    35: "tq2_0",
    39: "mxfp4",
    41: "q1_0",
    42: "q2_0",
}

# Types of ggml that are not read here; their names are for the error.
UNREAD_GGML_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    40: "NVFP4",
}

SAFETENSORS_TYPES: dict[str, Storage] = {
    "F64": "f64",
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "F8_E4M3": "f8_e4m3",
    "F8_E5M2": "f8_e5m2",
    "I8": "i8",
    "I16": "i16",
    "I32": "i32",
    "I64": "i64",
    "U8": "u8",
    "BOOL": "bool",
}

# Type strings, so that reading headers needs no numpy. numpy has neither bfloat16 nor
# float8: their bits are given as unsigned integers.
NUMPY_TYPES: dict[Storage, str] = {
    "f64": "<f8",
    "f32": "<f4",
    "f16": "<f2",
    "bf16": "<u2",
    "f8_e4m3": "u1",
    "f8_e5m2": "u1",
    "i8": "i1",
    "i16": "<i2",
    "i32": "<i4",
    "i64": "<i8",
    "u8": "u1",
    "bool": "?",
}


def is_plain_type(storage: Storage) -> bool:
    """Returns whether elements are plain numbers; False for ggml's blocks and for codes, which need scales."""
    return storage in NUMPY_TYPES


def stored_bytes(storage: Storage, shape: tuple[int, ...]) -> int:
    """Returns the bytes of a tensor. Raises ValueError if a row does not divide into blocks."""
    elements, size = BLOCKS[storage]
    if elements > 1 and (not shape or shape[-1] % elements):
        raise ValueError(
            f"a row of {shape[-1] if shape else 1} elements does not divide into {storage} blocks of {elements}"
        )
    return math.prod(shape) // elements * size
