"""How each stored tensor type becomes one of the kernels' canonical layouts, with its size and its stated error.

A translator in loading/formats exists for each row of STORAGES; the planner and the translators read the same table, so
a plan's bytes are the bytes that load.
"""

from typing import Literal

import msgspec

CanonicalLayout = Literal["f32", "f16", "bf16", "int8", "int4", "int5", "int6"]
TensorRole = Literal["linear", "embedding", "other"]

EXACT = "exact"
SCALE_ERROR = "a group's scale is rounded to f16: at most 2^-11 of it, above 2^-14 in size"
BF16_ERROR = "rounded to bf16: at most 2^-9 of a weight"
F16_ERROR = "rounded to f16: at most 2^-12 of a weight, above 2^-14 in size and below 65,504"
INT8_ERROR = "rounded to 8 bits a group: at most 1/254 of the group's largest weight"
INT4_ERROR = "rounded to 4 bits a group: at most 1/30 of the group's range"


class WeightForm(msgspec.Struct, frozen=True):
    """A canonical layout with its parameters. `group_size` None means dense, or one group a row.

    sub_group_size: columns of a sub-group, where groups of 256 have them; each has an 8-bit factor for the scale, and
    one for the offset.
    """

    layout: CanonicalLayout
    group_size: int | None = None
    has_offset: bool = False
    scale_bytes: Literal[2, 4] = 2  # f16 or f32
    sub_group_size: int | None = None

    @property
    def element_bits(self) -> int:
        return _ELEMENT_BITS[self.layout]

    @property
    def is_quantized(self) -> bool:
        return self.layout in INTEGER_LAYOUTS


INTEGER_LAYOUTS = ("int8", "int4", "int5", "int6")
CENTRES = {"int4": 8, "int5": 16, "int6": 32}  # the code of zero where every offset is minus that many scales
_ELEMENT_BITS: dict[CanonicalLayout, int] = {
    "f32": 32, "f16": 16, "bf16": 16, "int8": 8, "int4": 4, "int5": 5, "int6": 6,
}  # fmt: skip

F32 = WeightForm("f32")
F16 = WeightForm("f16")
BF16 = WeightForm("bf16")
INT8_G32 = WeightForm("int8", 32)
INT4_G32 = WeightForm("int4", 32, has_offset=True)
INT5_G32 = WeightForm("int5", 32, has_offset=True)
INT4_S16 = WeightForm("int4", 256, has_offset=True, sub_group_size=16)
INT4_S32 = WeightForm("int4", 256, has_offset=True, sub_group_size=32)
INT5_S32 = WeightForm("int5", 256, has_offset=True, sub_group_size=32)
INT6_S16 = WeightForm("int6", 256, has_offset=True, sub_group_size=16)
DENSE = {"f32": F32, "f16": F16, "bf16": BF16}
SIX_BIT_SCREEN_ROWS = 4  # kernels/cpu/screen.h: steps of more rows do without a screen in six bits


def screen_form(layout: str, group_size: int | None, columns: int) -> WeightForm | None:
    """Of the copy that tells where the largest products with a weight may be: 8 bits of 16 and 32, and 6 of int8 in
    groups that int6 has. None where a copy would save too little, or cannot be."""
    if layout in DENSE:
        return WeightForm("int8", scale_bytes=4)
    size = min(group_size or columns, 256)
    is_whole = size % 16 == 0 and 256 % size == 0 and columns % size == 0
    return WeightForm("int6", size) if layout == "int8" and is_whole else None


class StoredFormat(msgspec.Struct, frozen=True):
    """A stored tensor type: its native canonical form (None: no kernel layout takes it in this version).

    is_symmetric: every offset is the layout's centre in scales below zero, which kernels know and do not keep.
    """

    form: WeightForm | None
    error: str = EXACT
    is_quantized: bool = False
    is_symmetric: bool = False


_CODE_BITS: tuple[Literal[4, 8], ...] = (4, 8)
_CODE_GROUPS: dict[str, int | None] = {"channel": None, "g32": 32, "g64": 64, "g128": 128}


def _codes(bits: Literal[4, 8], group_size: int | None, *, zero_point: bool) -> StoredFormat:
    """Codes with their own tensor of scales. One scale a row is kept in f32: it costs next to nothing."""
    form = WeightForm(
        "int8" if bits == 8 else "int4",
        group_size,
        has_offset=zero_point or bits == 4,
        scale_bytes=4 if group_size is None else 2,
    )
    error = EXACT if group_size is None else SCALE_ERROR
    return StoredFormat(form, error, is_quantized=True, is_symmetric=not zero_point)


STORAGES: dict[str, StoredFormat] = {
    "f64": StoredFormat(F32, "rounded to f32: at most 2^-25 of a weight"),
    "f32": StoredFormat(F32),
    "f16": StoredFormat(F16),
    "bf16": StoredFormat(BF16),
    "q4_0": StoredFormat(INT4_G32, EXACT, is_quantized=True, is_symmetric=True),
    "q4_1": StoredFormat(INT4_G32, EXACT, is_quantized=True),
    "q5_0": StoredFormat(INT5_G32, EXACT, is_quantized=True, is_symmetric=True),
    "q5_1": StoredFormat(INT5_G32, EXACT, is_quantized=True),
    "q8_0": StoredFormat(INT8_G32, EXACT, is_quantized=True),
    "q2_k": StoredFormat(INT4_S16, EXACT, is_quantized=True),
    "q3_k": StoredFormat(INT4_S16, EXACT, is_quantized=True, is_symmetric=True),
    "q4_k": StoredFormat(INT4_S32, EXACT, is_quantized=True),
    "q5_k": StoredFormat(INT5_S32, EXACT, is_quantized=True),
    "q6_k": StoredFormat(INT6_S16, EXACT, is_quantized=True, is_symmetric=True),
    **{
        f"int{bits}_{group}{suffix}": _codes(bits, size, zero_point=suffix == "_zp")
        for bits in _CODE_BITS
        for group, size in _CODE_GROUPS.items()
        for suffix in ("", "_zp")
    },
    "f8_e4m3": StoredFormat(None),
    "f8_e5m2": StoredFormat(None),
    "i8": StoredFormat(None),
    "i16": StoredFormat(None),
    "i32": StoredFormat(None),
    "i64": StoredFormat(None),
    "u8": StoredFormat(None),
    "bool": StoredFormat(None),
}

DENSE_ERRORS: dict[tuple[str, str], str] = {
    ("f32", "bf16"): BF16_ERROR,
    ("f16", "bf16"): BF16_ERROR,
    ("f64", "bf16"): BF16_ERROR,
    ("f32", "f16"): F16_ERROR,
    ("f64", "f16"): F16_ERROR,
    ("bf16", "f16"): "values beyond 65,504 overflow, below 2^-14 lose bits",
}

# Quantizations that load time can apply to a dense checkpoint, by the form of each role's matrices.
LOAD_QUANTIZATIONS: dict[str, dict[TensorRole, tuple[WeightForm, str]]] = {
    "int8": {"linear": (INT8_G32, INT8_ERROR), "embedding": (INT8_G32, INT8_ERROR)},
    "int4": {"linear": (INT4_G32, INT4_ERROR), "embedding": (INT8_G32, INT8_ERROR)},
}


def dense_error(storage: str, layout: str) -> str:
    """The stated error of turning `storage` into dense `layout`."""
    stored = STORAGES[storage]
    if stored.is_quantized:
        return {"f32": EXACT, "bf16": BF16_ERROR, "f16": F16_ERROR}[layout]
    return DENSE_ERRORS.get((storage, layout), stored.error if layout == "f32" else EXACT)
