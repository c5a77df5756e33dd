"""Products of rows that are in the order of their experts, each with its expert's matrix, dense or packed."""

from typing import Any

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.codes import code_constants, code_tensors, first_column, load_factor
from appliance.kernels.gpu.triton.launch import after_previous, launch, row_stride
from appliance.kernels.gpu.triton.linear import LinearTile, finish
from appliance.kernels.gpu.triton.packing import PackedQuantized
from appliance.kernels.gpu.triton.quantized import quantized_dot


@triton.jit
def tile_rows(order, factors, tile, CHOSEN: tl.constexpr, WEIGH: tl.constexpr, ROWS: tl.constexpr):
    """Returns the positions of a tile, whether they have a pair, their rows of x, and what these are multiplied by.

    CHOSEN: experts of a token, where rows of x are tokens; 0: rows of x are positions.
    """
    position = tile * ROWS + tl.arange(0, ROWS)
    pair = tl.load(order + position)
    is_row = pair >= 0
    row = position
    if CHOSEN > 0:
        row = pair // CHOSEN
    factor = tl.full([ROWS], 1.0, tl.float32)
    if WEIGH:
        factor = tl.load(factors + pair, mask=is_row, other=0.0).to(tl.float32)
    return position, is_row, tl.where(is_row, row, 0).to(tl.int64), factor


@triton.jit
def expert_linear_kernel(
    x, weight, bias, out, order, tile_experts, factors, features, columns, x_stride, weight_stride, out_stride,
    CHOSEN: tl.constexpr, WEIGH: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr,
    COLUMNS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs: a tile of positions, and FEATURES rows of its expert's matrix, the left operand."""
    after_previous(PDL)
    expert = tl.load(tile_experts + tl.program_id(0))
    if expert < 0:
        return
    position, is_row, row, factor = tile_rows(order, factors, tl.program_id(0), CHOSEN, WEIGH, ROWS)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    is_feature = (feature < features)[:, None]
    column = tl.arange(0, COLUMNS)
    of_expert = expert.to(tl.int64) * features
    weights = weight + (of_expert + feature)[:, None] * weight_stride + column[None, :]
    inputs = x + row[None, :] * x_stride + column[:, None]
    acc = tl.zeros([FEATURES, ROWS], tl.float32)
    for first in tl.range(0, columns, COLUMNS, num_stages=STAGES):
        is_column = column < columns - first
        tile = tl.load(weights + first, mask=is_feature & is_column[None, :], other=0.0)
        block = tl.load(inputs + first, mask=is_column[:, None] & is_row[None, :], other=0.0)
        if WEIGH:
            block = (block.to(tl.float32) * factor[None, :]).to(block.dtype)
        acc = tl.dot(tile.to(block.dtype), block, acc, input_precision="ieee")
    at = position.to(tl.int64)[None, :] * out_stride + feature[:, None]
    of_bias = of_expert + feature[:, None] + 0 * position[None, :]
    finish(acc, bias, out, at, of_bias, is_feature & is_row[None, :], 0, BIAS, False)


@triton.jit
def expert_quantized_kernel(
    x, words, scale, offset, sub_scale, sub_offset, book, bias, out, order, tile_experts, factors, features, x_stride,
    out_stride,
    CHOSEN: tl.constexpr, WEIGH: tl.constexpr, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr,
    WORDS: tl.constexpr, STAGES: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr,
    UNIT: tl.constexpr, GROUP: tl.constexpr, SUB_GROUP: tl.constexpr, COLUMNS: tl.constexpr, E8M0: tl.constexpr,
    SUB: tl.constexpr, OFFSET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Does what expert_linear_kernel does, of a packed weight; WEIGH multiplies the sums, which comes to the same."""
    after_previous(PDL)
    expert = tl.load(tile_experts + tl.program_id(0))
    if expert < 0:
        return
    position, is_row, source, factor = tile_rows(order, factors, tl.program_id(0), CHOSEN, WEIGH, ROWS)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    is_feature = (feature < features)[:, None]
    row = (expert.to(tl.int64) * features + feature)[:, None]
    num_words: tl.constexpr = COLUMNS * BITS // 32
    one_unit: tl.constexpr = WORDS * 32 // BITS == UNIT
    acc = tl.zeros([FEATURES, ROWS], tl.float32)
    for first in tl.range(0, num_words, WORDS, num_stages=STAGES):
        index = first + tl.arange(0, WORDS)
        is_word = index < num_words
        is_live = is_feature & is_word[None, :]
        word = tl.load(words + row * num_words + index[None, :], mask=is_live, other=0)
        column = first_column(index, UNIT, BITS)
        of_group, is_factor = column[None, :], is_live
        if one_unit:
            of_group = (first_column(first, UNIT, BITS) + tl.arange(0, 1))[None, :]
            is_factor = is_feature
        by = load_factor(scale, row, of_group, is_factor, sub_scale, GROUP, SUB_GROUP, COLUMNS, E8M0, SUB)
        more = by
        if OFFSET:
            more = load_factor(offset, row, of_group, is_factor, sub_offset, GROUP, SUB_GROUP, COLUMNS, False, SUB)
        acc = quantized_dot(
            acc, x + source[None, :] * x_stride, column, is_word, is_row[None, :], word, by, more, book,
            BITS, KIND, BIAS, UNIT, OFFSET, one_unit,
        )  # fmt: skip
    if WEIGH:
        acc *= factor[None, :]
    at = position.to(tl.int64)[None, :] * out_stride + feature[:, None]
    finish(acc, bias, out, at, row + 0 * position[None, :], is_feature & is_row[None, :], 0, HAS_BIAS, False)


def expert_linear(
    x: torch.Tensor,
    weight: torch.Tensor | PackedQuantized,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    order: torch.Tensor,
    tile_experts: torch.Tensor,
    num_experts: int,
    tile: LinearTile,
    num_chosen: int = 0,
    factors: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """out[p] = x[row of p] @ weight_e.T + bias_e for each position p with a pair, e being the expert of its tile.

    order, tile_experts: as order_by_expert writes them. weight: [E * N, K]. bias: [E * N]. out: a span [positions, N].
    x: a span [T, K] with num_chosen experts of a token, or with 0 of positions. factors: f32 [T * k], what each pair
    multiplies its row of x by. tile.columns: words, if the weight is packed.
    """
    rows, width = order.shape[0] // tile_experts.shape[0], out.shape[1]
    grid = tile_experts.shape[0], triton.cdiv(width, tile.features)
    given = order, tile_experts, x if factors is None else factors
    shared: dict[str, Any] = {
        "CHOSEN": num_chosen, "WEIGH": factors is not None, "ROWS": rows, "FEATURES": tile.features,
        "STAGES": tile.num_stages, "num_warps": tile.num_warps, "pdl": pdl,
    }  # fmt: skip
    _check(weight, width, num_experts)
    if isinstance(weight, PackedQuantized):
        launch(
            expert_quantized_kernel, grid, x, *code_tensors(weight), x if bias is None else bias, out, *given, width,
            row_stride(x), row_stride(out), HAS_BIAS=bias is not None, WORDS=tile.columns, **code_constants(weight),
            **shared,
        )  # fmt: skip
    else:
        launch(
            expert_linear_kernel, grid, x, weight, x if bias is None else bias, out, *given, width, weight.shape[1],
            row_stride(x), row_stride(weight), row_stride(out), BIAS=bias is not None, COLUMNS=tile.columns, **shared,
        )  # fmt: skip


def _check(weight: torch.Tensor | PackedQuantized, width: int, num_experts: int) -> None:
    rows = weight.out_features if isinstance(weight, PackedQuantized) else weight.shape[0]
    if rows != num_experts * width:
        raise ValueError(f"{num_experts} experts of {width} rows are not the {rows} rows of the weight")
