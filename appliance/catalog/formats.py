"""The canonical layout, size and stated error for each stored tensor type.

Each row of STORAGES has a translator in loading/formats; the planner and the translators read the same table, so the
planned bytes are the bytes that are loaded.
"""

from typing import Literal

import msgspec

CanonicalLayout = Literal[
    "f32", "f16", "bf16", "int8", "int4", "int5", "int6", "f8", "e2m1", "nf4", "fp4", "iq4_nl",
]  # fmt: skip
TensorRole = Literal["linear", "embedding", "other"]

EXACT = "exact"
SCALE_ERROR = "group scales are kept in f16: exact if they are stored so, else to 2^-11 of one, above 2^-14 in size"
ORDER_ERROR = "act-order: each weight is the f16 that its library computes"
SPREAD_ERROR = "groups go down the rows: rounded to f16, at most 2^-12 of a weight, above 2^-14 in size"
SUMS_ERROR = "sums of codebooks, made dense: each weight is rounded as its library rounds it, but for ties of bf16"
BF16_ERROR = "rounded to bf16: at most 2^-9 of a weight"
F16_ERROR = "rounded to f16: at most 2^-12 of a weight, above 2^-14 in size and below 65,504"
INT8_ERROR = "rounded to 8 bits a group: at most 1/254 of the group's largest weight"
F8_ERROR = "rounded to e4m3 with a scale a row: at most 1/16 of a weight, or 1/458,752 of the row's largest"
NF4_ERROR = "rounded to bitsandbytes' NF4 in blocks of 64: at most 0.152 of the block's largest weight"
INT4_ERROR = "rounded to 4 bits a group: at most 1/30 of the group's range"


class WeightForm(msgspec.Struct, frozen=True):
    """A canonical layout with its parameters. `group_size` None means dense, or one group per row.

    sub_group_size: the columns of a sub-group, if groups of 256 have them; each sub-group has an 8-bit factor for the
    scale, and one for the offset.
    """

    layout: CanonicalLayout
    group_size: int | None = None
    has_offset: bool = False
    scale_bytes: Literal[1, 2, 4] = 2  # e8m0, f16 or f32
    sub_group_size: int | None = None

    @property
    def element_bits(self) -> int:
        return _ELEMENT_BITS[self.layout]

    @property
    def is_quantized(self) -> bool:
        return self.layout in INTEGER_LAYOUTS or self.layout in CODED_LAYOUTS

    @property
    def has_integers(self) -> bool:
        """Integer codes, and those of books of integers, are multiplied with rounded activations where a plan rounds
        them; other codes never are."""
        return self.layout in ROUNDED_INPUT_LAYOUTS


INTEGER_LAYOUTS = ("int8", "int4", "int5", "int6")
BOOK_LAYOUTS = ("e2m1", "nf4", "fp4", "iq4_nl")
CODED_LAYOUTS = ("f8", *BOOK_LAYOUTS)  # codes that stand for floats
# Their values are small multiples of one unit, so products with 8-bit activations are products of integers.
ROUNDED_INPUT_LAYOUTS = (*INTEGER_LAYOUTS, "e2m1", "iq4_nl")
CENTRES = {"int4": 8, "int5": 16, "int6": 32}  # the code of zero in weights without offsets
_ELEMENT_BITS: dict[CanonicalLayout, int] = {
    "f32": 32, "f16": 16, "bf16": 16, "int8": 8, "int4": 4, "int5": 5, "int6": 6,
    "f8": 8, "e2m1": 4, "nf4": 4, "fp4": 4, "iq4_nl": 4,
}  # fmt: skip

F32 = WeightForm("f32")
F16 = WeightForm("f16")
BF16 = WeightForm("bf16")
INT8_G32 = WeightForm("int8", 32)
INT4_G32 = WeightForm("int4", 32, has_offset=True)
F8_ROWS = WeightForm("f8", scale_bytes=4)
NF4_G64 = WeightForm("nf4", 64, scale_bytes=4)
INT4_G256 = WeightForm("int4", 256, has_offset=True)
INT5_G32 = WeightForm("int5", 32, has_offset=True)
INT4_S16 = WeightForm("int4", 256, has_offset=True, sub_group_size=16)
INT4_S32 = WeightForm("int4", 256, has_offset=True, sub_group_size=32)
INT5_S32 = WeightForm("int5", 256, has_offset=True, sub_group_size=32)
INT6_S16 = WeightForm("int6", 256, has_offset=True, sub_group_size=16)
# Of blocks whose scale is a fraction of their f16, which f16 cannot always hold.
INT4_S32_F32 = WeightForm("int4", 256, has_offset=True, scale_bytes=4, sub_group_size=32)
INT6_S16_F32 = WeightForm("int6", 256, has_offset=True, scale_bytes=4, sub_group_size=16)
INT6_S32_F32 = WeightForm("int6", 256, has_offset=True, scale_bytes=4, sub_group_size=32)
DENSE = {"f32": F32, "f16": F16, "bf16": BF16}
SIX_BIT_SCREEN_ROWS = 4  # kernels/cpu/screen.h: steps with more rows do not use a six-bit screen


def screen_form(layout: str, group_size: int | None, columns: int) -> WeightForm | None:
    """Returns the form of a weight's screen: int8 for 16 and 32 bits, int6 for int8 in groups that int6 supports. None
    if a screen would save too little or is not possible."""
    if layout in DENSE:
        return WeightForm("int8", scale_bytes=4)
    size = min(group_size or columns, 256)
    is_whole = size % 16 == 0 and 256 % size == 0 and columns % size == 0
    return WeightForm("int6", size) if layout == "int8" and is_whole else None


class StoredFormat(msgspec.Struct, frozen=True):
    """A stored tensor type and its canonical form (None: no kernel layout supports it in this version).

    is_symmetric: every offset is minus the layout's centre times the scale; kernels know that and do not store it.
    """

    form: WeightForm | None
    error: str = EXACT
    is_quantized: bool = False
    is_symmetric: bool = False


_CODE_BITS = (2, 3, 4, 8)
CODE_GROUPS: dict[str, int | None] = {
    "channel": None, "g16": 16, "g32": 32, "g64": 64, "g128": 128, "g256": 256,
}  # fmt: skip


def _codes(bits: int, group_size: int | None, *, zero_point: bool) -> StoredFormat:
    """Returns the format of codes with a separate scale tensor.

    A scale per row stays f32, which costs very little; so do scales beside zero points, as the product of the two,
    which is kept, has more bits than f16.
    """
    is_wide = group_size is None or zero_point
    form = WeightForm(
        "int8" if bits == 8 else "int4",
        group_size,
        has_offset=zero_point or bits < 8,
        scale_bytes=4 if is_wide else 2,
    )
    return StoredFormat(form, EXACT if is_wide else SCALE_ERROR, is_quantized=True, is_symmetric=not zero_point)


def _coded(layout: CanonicalLayout, group_size: int | None, scale_bytes: Literal[1, 2, 4] = 4) -> StoredFormat:
    """Returns the format of codes that stand for floats."""
    return StoredFormat(WeightForm(layout, group_size, scale_bytes=scale_bytes), EXACT, is_quantized=True)


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
        for group, size in CODE_GROUPS.items()
        for suffix in ("", "_zp")
    },
    "f8_channel": _coded("f8", None),
    "f8_g32": _coded("f8", 32),
    "f8_g64": _coded("f8", 64),
    "f8_g128": _coded("f8", 128),
    "mxfp4": _coded("e2m1", 32, 1),
    "nvfp4": _coded("e2m1", 16),
    **{f"{book}_g{size}": _coded(book, size) for book in ("nf4", "fp4") for size in (64, 128, 256)},
    "iq4_nl": _coded("iq4_nl", 32, 2),
    "iq4_xs": _coded("iq4_nl", 32),
    "iq1_s": StoredFormat(INT4_S32_F32, EXACT, is_quantized=True),
    "iq1_m": StoredFormat(INT6_S16_F32, EXACT, is_quantized=True, is_symmetric=True),
    "iq2_xxs": StoredFormat(WeightForm("int8", 32, scale_bytes=4), EXACT, is_quantized=True),
    "iq2_xs": StoredFormat(WeightForm("int8", 16, scale_bytes=4), EXACT, is_quantized=True),
    "iq2_s": StoredFormat(WeightForm("int8", 16, scale_bytes=4), EXACT, is_quantized=True),
    "iq3_xxs": StoredFormat(INT6_S32_F32, EXACT, is_quantized=True, is_symmetric=True),
    "iq3_s": StoredFormat(INT5_S32, EXACT, is_quantized=True, is_symmetric=True),
    "q1_0": StoredFormat(WeightForm("int4", 128, has_offset=True), EXACT, is_quantized=True, is_symmetric=True),
    "q2_0": StoredFormat(WeightForm("int4", 64, has_offset=True), EXACT, is_quantized=True, is_symmetric=True),
    "tq1_0": StoredFormat(INT4_G256, EXACT, is_quantized=True, is_symmetric=True),
    "tq2_0": StoredFormat(INT4_G256, EXACT, is_quantized=True, is_symmetric=True),
    **{f"int{bits}_order": StoredFormat(F16, ORDER_ERROR, is_quantized=True) for bits in _CODE_BITS},
    **{f"int{bits}_spread": StoredFormat(F16, SPREAD_ERROR, is_quantized=True) for bits in _CODE_BITS},
    "aqlm_f16": StoredFormat(F16, SUMS_ERROR, is_quantized=True),
    "aqlm_bf16": StoredFormat(BF16, SUMS_ERROR, is_quantized=True),
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

# The methods of quantization in which a checkpoint may be stored, as its config spells them.
STORED_METHODS = ("gguf", "compressed-tensors", "gptq", "awq", "fp8", "fbgemm_fp8", "modelopt", "mxfp4",
                  "bitsandbytes", "hqq", "torchao", "aqlm", "quark")  # fmt: skip

# The quantizations that can be applied to a dense checkpoint while loading, with the form of each role's matrices; a
# role that is not there stays dense. fp8 and bitsandbytes, which is NF4 with one level of scales, leave embeddings and
# head, as vLLM does.
LOAD_QUANTIZATIONS: dict[str, dict[TensorRole, tuple[WeightForm, str]]] = {
    "int8": {"linear": (INT8_G32, INT8_ERROR), "embedding": (INT8_G32, INT8_ERROR)},
    "int4": {"linear": (INT4_G32, INT4_ERROR), "embedding": (INT8_G32, INT8_ERROR)},
    "fp8": {"linear": (F8_ROWS, F8_ERROR)},
    "bitsandbytes": {"linear": (NF4_G64, NF4_ERROR)},
}


def dense_error(storage: str, layout: str) -> str:
    """Returns the stated error of converting `storage` to dense `layout`."""
    stored = STORAGES[storage]
    if stored.is_quantized:
        return {"f32": EXACT, "bf16": BF16_ERROR, "f16": F16_ERROR}[layout]
    return DENSE_ERRORS.get((storage, layout), stored.error if layout == "f32" else EXACT)
