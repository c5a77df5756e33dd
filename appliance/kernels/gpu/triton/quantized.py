"""Products of few rows with packed weights, and packed weights made dense: rows of it, or all.

Above MOST_ROWS rows, `dequantize` and the vendor's library are the choice.
"""

from typing import Final

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.activation import ACTIVATIONS
from appliance.kernels.gpu.triton.architectures import architecture
from appliance.kernels.gpu.triton.codes import code_constants, code_tensors, decode, first_column, load_factor
from appliance.kernels.gpu.triton.launch import after_previous, launch, power_of_two, row_stride
from appliance.kernels.gpu.triton.linear import LinearTile, finish, sum_parts, target_of
from appliance.kernels.gpu.triton.packing import PackedQuantized
from appliance.program.device_memory import PRODUCT_SHARES
from appliance.program.record import ActivationKind

MOST_ROWS: Final = 32


@triton.jit
def quantized_gemv_kernel(
    x, words, scale, offset, sub_scale, sub_offset, book, bias, y, features,
    ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, ADD: tl.constexpr, FEATURES: tl.constexpr, WORDS: tl.constexpr,
    BITS: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr, UNIT: tl.constexpr, GROUP: tl.constexpr,
    SUB_GROUP: tl.constexpr, COLUMNS: tl.constexpr, E8M0: tl.constexpr, SUB: tl.constexpr, OFFSET: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One row of x; scales multiply sums over the codes of a word."""
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    row = feature.to(tl.int64)[:, None]
    num_words: tl.constexpr = COLUMNS * BITS // 32
    after_previous(PDL)
    acc = tl.zeros([FEATURES, WORDS], tl.float32)
    for first in tl.range(0, num_words, WORDS):
        index = first + tl.arange(0, WORDS)
        is_word = index < num_words
        is_live = (row < features) & is_word[None, :]
        word = tl.load(
            words + row * num_words + index[None, :], mask=is_live, other=0, eviction_policy="evict_first"
        )  # fmt: skip
        column = first_column(index, UNIT, BITS)
        part = tl.zeros([FEATURES, WORDS], tl.float32)
        total = tl.zeros([WORDS], tl.float32)
        for place in tl.static_range(32 // BITS):
            inputs = tl.load(x + column + place * (UNIT * BITS // 32), mask=is_word, other=0.0).to(tl.float32)
            part += decode(word, book, place, BITS, KIND, BIAS) * inputs[None, :]
            total += inputs
        column = column[None, :]
        acc += part * load_factor(scale, row, column, is_live, sub_scale, GROUP, SUB_GROUP, COLUMNS, E8M0, SUB)
        if OFFSET:
            acc += total[None, :] * load_factor(
                offset, row, column, is_live, sub_offset, GROUP, SUB_GROUP, COLUMNS, False, SUB
            )  # fmt: skip
    finish(tl.sum(acc, 1), bias, y, feature, feature, feature < features, ACTIVATION, HAS_BIAS, ADD)


@triton.jit
def quantized_dot(
    acc, x, column, is_word, is_row, word, scale, offset, book,
    BITS: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr, UNIT: tl.constexpr, OFFSET: tl.constexpr,
    ONE_UNIT: tl.constexpr,
):  # fmt: skip
    """acc [features, rows] + the product of words [features, words] with x, a pointer to rows [1, rows].

    ONE_UNIT: all words are of one unit. Its numbers are multiplied as they are, and the sums scaled; else numbers are
    scaled first. scale, offset: [features, 1] or [features, words].
    """
    part = acc
    if ONE_UNIT:
        part = acc * 0.0
        total = tl.sum(part, 0) * 0.0
    for place in tl.static_range(32 // BITS):
        at = x + (column + place * (UNIT * BITS // 32))[:, None]
        inputs = tl.load(at, mask=is_row & is_word[:, None], other=0.0)
        number = decode(word, book, place, BITS, KIND, BIAS)
        if ONE_UNIT:
            total += tl.sum(inputs.to(tl.float32), 0)
        else:
            number = number * scale + offset if OFFSET else number * scale
        part = tl.dot(number.to(inputs.dtype), inputs, part, input_precision="ieee")
    if ONE_UNIT:
        part = acc + part * scale
        if OFFSET:
            part += offset * total[None, :]
    return part


@triton.jit(do_not_specialize=["rows"])
def quantized_rows_kernel(
    x, words, scale, offset, sub_scale, sub_offset, book, bias, y, rows, features, share, x_stride, y_stride,
    part_stride,
    ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr,
    WORDS: tl.constexpr, STAGES: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr,
    UNIT: tl.constexpr, GROUP: tl.constexpr, SUB_GROUP: tl.constexpr, COLUMNS: tl.constexpr, E8M0: tl.constexpr,
    SUB: tl.constexpr, OFFSET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs: FEATURES rows of the weight, a share of its words, which has a part of y, and ROWS rows of x."""
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    row = feature.to(tl.int64)[:, None]
    token = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    is_row = (token < rows)[None, :]
    num_words: tl.constexpr = COLUMNS * BITS // 32
    one_unit: tl.constexpr = WORDS * 32 // BITS == UNIT
    after_previous(PDL)
    acc = tl.zeros([FEATURES, ROWS], tl.float32)
    start = tl.program_id(1) * share
    for first in tl.range(start, tl.minimum(num_words, start + share), WORDS, num_stages=STAGES):
        index = first + tl.arange(0, WORDS)
        is_word = index < num_words
        is_live = (row < features) & is_word[None, :]
        word = tl.load(
            words + row * num_words + index[None, :], mask=is_live, other=0, eviction_policy="evict_first"
        )  # fmt: skip
        column = first_column(index, UNIT, BITS)
        of_group = column[None, :]
        is_factor = is_live
        if one_unit:
            of_group = (first_column(first, UNIT, BITS) + tl.arange(0, 1))[None, :]
            is_factor = row < features
        factor = load_factor(scale, row, of_group, is_factor, sub_scale, GROUP, SUB_GROUP, COLUMNS, E8M0, SUB)
        more = factor
        if OFFSET:
            more = load_factor(offset, row, of_group, is_factor, sub_offset, GROUP, SUB_GROUP, COLUMNS, False, SUB)
        acc = quantized_dot(
            acc, x + token.to(tl.int64)[None, :] * x_stride, column, is_word, is_row, word, factor, more, book,
            BITS, KIND, BIAS, UNIT, OFFSET, one_unit,
        )  # fmt: skip
    at = token.to(tl.int64)[None, :] * y_stride + feature[:, None]
    part = y + tl.program_id(1).to(tl.int64) * part_stride
    of_bias = feature[:, None] + 0 * token[None, :]
    finish(acc, bias, part, at, of_bias, (row < features) & is_row, ACTIVATION, HAS_BIAS, ADD)


@triton.jit
def dequantize_kernel(
    words, scale, offset, sub_scale, sub_offset, book, ids, out, num_rows, out_stride, factor,
    IDS: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr,
    BIAS: tl.constexpr, UNIT: tl.constexpr, GROUP: tl.constexpr, SUB_GROUP: tl.constexpr, COLUMNS: tl.constexpr,
    E8M0: tl.constexpr, SUB: tl.constexpr, OFFSET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs: ROWS rows of out and WORDS words. With IDS, row t of out is row ids[t] of the weight."""
    target = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    index = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    num_words: tl.constexpr = COLUMNS * BITS // 32
    is_live = (target < num_rows) & (index < num_words)[None, :]
    after_previous(PDL)
    row = target
    if IDS:
        row = tl.load(ids + target, mask=target < num_rows, other=0).to(tl.int64)
    word = tl.load(words + row * num_words + index[None, :], mask=is_live, other=0)
    column = first_column(index, UNIT, BITS)[None, :]
    by = load_factor(scale, row, column, is_live, sub_scale, GROUP, SUB_GROUP, COLUMNS, E8M0, SUB)
    more = by
    if OFFSET:
        more = load_factor(offset, row, column, is_live, sub_offset, GROUP, SUB_GROUP, COLUMNS, False, SUB)
    for place in tl.static_range(32 // BITS):
        number = decode(word, book, place, BITS, KIND, BIAS) * by
        if OFFSET:
            number += more
        at = out + target * out_stride + column + place * (UNIT * BITS // 32)
        tl.store(at, (number * factor).to(out.dtype.element_ty), mask=is_live)


def quantized_gemv(
    x: torch.Tensor,
    weight: PackedQuantized,
    out: torch.Tensor,
    tile: LinearTile,
    bias: torch.Tensor | None = None,
    activation: ActivationKind | None = None,
    accumulate: bool = False,
    pdl: bool = False,
) -> None:
    """out = activation(x @ weight.T + bias) of one row, or out += that; as linear.gemv, `tile.columns` being words."""
    features = weight.out_features
    launch(
        quantized_gemv_kernel, (triton.cdiv(features, tile.features),), x, *code_tensors(weight),
        x if bias is None else bias, out, features, ACTIVATION=ACTIVATIONS[activation], HAS_BIAS=bias is not None,
        ADD=accumulate, FEATURES=tile.features, WORDS=tile.columns, **code_constants(weight), num_warps=tile.num_warps,
        pdl=pdl,
    )  # fmt: skip


def quantized_rows(
    x: torch.Tensor,
    weight: PackedQuantized,
    out: torch.Tensor,
    tile: LinearTile,
    bias: torch.Tensor | None = None,
    activation: ActivationKind | None = None,
    accumulate: bool = False,
    parts: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """out = activation(x @ weight.T + bias) of few rows, or out += that; as linear.few_rows, with columns of words.

    Numbers are rounded to the type of x; with words of just one unit before they are scaled, so integers are exact.
    """
    rows, features = x.shape[0], weight.out_features
    is_split = tile.splits > 1
    share = triton.cdiv(triton.cdiv(weight.words.shape[1], tile.splits), tile.columns) * tile.columns
    blocks = triton.cdiv(rows, tile.padded(rows))
    launch(
        quantized_rows_kernel, (triton.cdiv(features, tile.features), tile.splits, blocks), x, *code_tensors(weight),
        x if bias is None else bias, target_of(out, parts, tile.splits), rows, features, share, row_stride(x),
        features if is_split else row_stride(out), rows * features if is_split else 0,
        ACTIVATION=ACTIVATIONS[None if is_split else activation], HAS_BIAS=bias is not None and not is_split,
        ADD=accumulate and not is_split, ROWS=tile.padded(rows), FEATURES=tile.features, WORDS=tile.columns,
        STAGES=tile.num_stages, **code_constants(weight), num_warps=tile.num_warps, pdl=pdl,
    )  # fmt: skip
    if parts is not None and is_split:
        sum_parts(parts, out, bias, activation, accumulate, pdl)


def dequantize(
    weight: PackedQuantized, out: torch.Tensor, ids: torch.Tensor | None = None, factor: float = 1.0, pdl: bool = False
) -> None:
    """out = weight * factor, or row ids[t] of it in row t. out: a span [N or T, K] of any float type. ids: int [T]."""
    words = weight.words.shape[1]
    block = min(256, power_of_two(words))
    rows = max(1, 1024 // block)
    launch(
        dequantize_kernel, (triton.cdiv(out.shape[0], rows), triton.cdiv(words, block)), *code_tensors(weight),
        weight.words if ids is None else ids, out, out.shape[0], row_stride(out), factor, IDS=ids is not None,
        ROWS=rows, WORDS=block, **code_constants(weight), num_warps=4, pdl=pdl,
    )  # fmt: skip


def choose_quantized(
    weight: PackedQuantized, rows: int, arch: str, num_processors: int, batch_invariant: bool = False
) -> tuple[str, LinearTile]:
    """Returns "gemv", "few_rows" or "library" (after `dequantize`), and the tile, whose columns are words.

    batch_invariant: those of MOST_ROWS rows for any number; a row then rounds alike in every batch.
    """
    if rows == 1 and not batch_invariant:
        wide = min(512, power_of_two(weight.words.shape[1]))
        return "gemv", LinearTile(2 if wide == 512 else 4, wide, 4)
    if rows > MOST_ROWS and not batch_invariant:
        return "library", LinearTile(0, 0, 0)
    words = max(16, weight.unit * weight.bits // 32)
    height = 64
    steps = triton.cdiv(weight.words.shape[1], words)
    wanted = max(1, round(2 * num_processors * height / weight.out_features))
    splits = min(wanted, PRODUCT_SHARES, max(1, steps // 4))
    share = triton.cdiv(steps, splits)
    stages = 4 if architecture(arch).shared_bytes > 64 * 1024 else 2
    padded = MOST_ROWS if batch_invariant else 0
    return "few_rows", LinearTile(height, words, 4, stages, triton.cdiv(steps, share), padded)
