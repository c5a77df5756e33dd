"""How device code reads packed weights (packing.py): from words to numbers, with their scales and offsets."""

from typing import Any

import triton
import triton.language as tl

from appliance.kernels.gpu.triton.packing import PackedQuantized


@triton.jit
def decode(word, book, PLACE: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr):
    """Returns the f32 numbers of codes number PLACE of words."""
    code = (word >> (PLACE * BITS)) & ((1 << BITS) - 1)
    if KIND == 0:  # integers: the code in the low bits of 2^23 is a float already
        number = (code | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + BIAS)
    elif KIND == 1:  # e2m1: exponent and fraction are moved to those of f32
        size = code & 7
        number = ((size << 22) + (126 << 23)).to(tl.float32, bitcast=True)
        number = tl.where(size < 2, size.to(tl.float32) * 0.5, number)
        number = tl.where(code >= 8, -number, number)
    elif KIND == 2:  # a book of 16 numbers
        number = tl.load(book + code)
    else:  # e4m3, of any architecture
        size = code & 127
        number = ((size << 20) + (120 << 23)).to(tl.float32, bitcast=True)
        number = tl.where(size < 8, size.to(tl.float32) * 0.001953125, number)
        number = tl.where(size == 127, float("nan"), number)
        number = tl.where(code >= 128, -number, number)
    return number


@triton.jit
def load_factor(factors, row, column, is_live, sub, GROUP: tl.constexpr, SUB_GROUP: tl.constexpr,
                COLUMNS: tl.constexpr, E8M0: tl.constexpr, SUB: tl.constexpr):  # fmt: skip
    """Returns f32 scales or offsets of columns [words] of rows [features, 1], int64."""
    value = tl.load(factors + row * (COLUMNS // GROUP) + column // GROUP, mask=is_live, other=0)
    if E8M0:
        value = tl.where(value == 0, 0x00400000, value.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    else:
        value = value.to(tl.float32)
    if SUB:
        value *= tl.load(sub + row * (COLUMNS // SUB_GROUP) + column // SUB_GROUP, mask=is_live, other=0).to(tl.float32)
    return value


@triton.jit
def first_column(word_index, UNIT: tl.constexpr, BITS: tl.constexpr):
    """Returns the column of the first code of words; the next codes are UNIT * BITS / 32 columns apart."""
    step: tl.constexpr = UNIT * BITS // 32
    return word_index // step * UNIT + word_index % step


def code_constants(weight: PackedQuantized) -> dict[str, Any]:
    """Returns the constants of kernels that read a packed weight."""
    return {
        "BITS": weight.bits,
        "KIND": weight.kind,
        "BIAS": weight.bias,
        "UNIT": weight.unit,
        "GROUP": weight.group_size,
        "SUB_GROUP": weight.sub_group_size,
        "COLUMNS": weight.in_features,
        "E8M0": weight.scale.element_size() == 1,
        "SUB": weight.sub_scale is not None,
        "OFFSET": weight.offset is not None,
    }


def code_tensors(weight: PackedQuantized) -> tuple[Any, ...]:
    """Returns the tensors of kernels that read a packed weight: words, scale, offset, sub_scale, sub_offset, book."""
    given = (weight.offset, weight.sub_scale, weight.sub_offset, weight.book)
    return weight.words, weight.scale, *(weight.scale if each is None else each for each in given)
