"""Products of few rows with dense weights: one row by elementwise products, more with weights as the left operand.

Above MOST_ROWS rows the vendor's library is the choice. A weight may have another float type than the rows.
"""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from appliance.catalog.gpu_operators import FEW_ROWS
from appliance.kernels.gpu.triton.activation import ACTIVATIONS, activate
from appliance.kernels.gpu.triton.launch import after_previous, launch, power_of_two, row_stride
from appliance.program.record import ActivationKind

MOST_ROWS: Final = FEW_ROWS


@dataclass(frozen=True, slots=True)
class LinearTile:
    """How a product is cut: rows of the weight and columns of a program's step, and shares of the columns.

    rows: those of x that a program multiplies; 0 for all, padded to a power of two from 16.
    """

    features: int
    columns: int
    num_warps: int
    num_stages: int = 1
    splits: int = 1
    rows: int = 0

    def padded(self, rows: int) -> int:
        """Returns how many of so many rows of x a program multiplies."""
        return self.rows or max(16, power_of_two(rows))


@triton.jit
def finish(acc, bias, y, at, feature, is_live, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr):
    """Stores activation(acc + bias), added to what is there with ADD; feature has the shape of acc, or its part."""
    if BIAS:
        acc += tl.load(bias + feature, mask=is_live, other=0.0).to(tl.float32)
    acc = activate(acc, ACTIVATION)
    if ADD:
        acc += tl.load(y + at, mask=is_live, other=0.0).to(tl.float32)
    tl.store(y + at, acc.to(y.dtype.element_ty), mask=is_live)


@triton.jit
def weight_tile(pointers, first, columns, is_feature, FULL: tl.constexpr):
    """Loads a tile of a weight that no other program reads. FULL: every place of it is in the weight."""
    if FULL:
        tile = tl.load(pointers + first, eviction_policy="evict_first")
    else:
        column = first + tl.arange(0, pointers.shape[1])[None, :]
        tile = tl.load(
            pointers + first, mask=is_feature & (column < columns), other=0.0, eviction_policy="evict_first"
        )  # fmt: skip
    return tile


@triton.jit
def gemv_kernel(
    x, weight, bias, y, features, columns, weight_stride,
    ACTIVATION: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, FULL: tl.constexpr,
    FEATURES: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row of x. The first tile of weights is asked for before the program waits for who writes x."""
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    column = tl.arange(0, COLUMNS)
    is_feature = (feature < features)[:, None]
    pointers = weight + feature.to(tl.int64)[:, None] * weight_stride + column[None, :]
    tile = weight_tile(pointers, 0, columns, is_feature, FULL)
    after_previous(PDL)
    row = tl.load(x + column, mask=column < columns, other=0.0).to(tl.float32)
    acc = tile.to(tl.float32) * row[None, :]
    for first in tl.range(COLUMNS, columns, COLUMNS):
        tile = weight_tile(pointers, first, columns, is_feature, FULL)
        row = tl.load(x + first + column, mask=column < columns - first, other=0.0).to(tl.float32)
        acc += tile.to(tl.float32) * row[None, :]
    finish(tl.sum(acc, 1), bias, y, feature, feature, feature < features, ACTIVATION, BIAS, ADD)


@triton.jit(do_not_specialize=["rows"])
def few_rows_kernel(
    x, weight, bias, y, rows, features, columns, share, x_stride, weight_stride, y_stride, part_stride,
    ACTIVATION: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, FULL: tl.constexpr,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs: FEATURES rows of the weight, a share of the columns, which has a part of y, and ROWS rows of x."""
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    start = tl.program_id(1) * share
    end = tl.minimum(columns, start + share)
    column = tl.arange(0, COLUMNS)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    is_feature, is_row = (feature < features)[:, None], (row < rows)[None, :]
    pointers = weight + feature.to(tl.int64)[:, None] * weight_stride + column[None, :]
    inputs = x + row.to(tl.int64)[None, :] * x_stride + column[:, None]
    tile = weight_tile(pointers, start, end, is_feature, FULL)
    after_previous(PDL)
    block = tl.load(inputs + start, mask=is_row & (column < end - start)[:, None], other=0.0)
    acc = tl.dot(tile.to(block.dtype), block, input_precision="ieee")
    for first in tl.range(start + COLUMNS, end, COLUMNS, num_stages=STAGES):
        tile = weight_tile(pointers, first, end, is_feature, FULL)
        block = tl.load(inputs + first, mask=is_row & (column < end - first)[:, None], other=0.0)
        acc = tl.dot(tile.to(block.dtype), block, acc, input_precision="ieee")
    at = row.to(tl.int64)[None, :] * y_stride + feature[:, None]
    part = y + tl.program_id(1).to(tl.int64) * part_stride
    finish(acc, bias, part, at, feature[:, None] + 0 * row[None, :], is_feature & is_row, ACTIVATION, BIAS, ADD)


@triton.jit(do_not_specialize=["part_stride"])
def sum_parts_kernel(
    parts, bias, y, width, part_stride, y_stride,
    PARTS: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program a row and BLOCK columns; parts are added in their order."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_live = column < width
    after_previous(PDL)
    acc = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(PARTS):
        acc += tl.load(parts + part * part_stride + row * width + column, mask=is_live, other=0.0)
    finish(acc, bias, y, row * y_stride + column, column, is_live, ACTIVATION, BIAS, ADD)


def gemv(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    tile: LinearTile,
    bias: torch.Tensor | None = None,
    activation: ActivationKind | None = None,
    accumulate: bool = False,
    pdl: bool = False,
) -> None:
    """out = activation(x @ weight.T + bias) of one row, or out += that with `accumulate`, as Linear does.

    x: a span [1, K]. weight: [N, K] of any stride between rows. out: a span [1, N]. bias: [N].
    """
    features, columns = weight.shape
    launch(
        gemv_kernel, (triton.cdiv(features, tile.features),), x, weight, x if bias is None else bias, out, features,
        columns, row_stride(weight), ACTIVATION=ACTIVATIONS[activation], BIAS=bias is not None, ADD=accumulate,
        FULL=features % tile.features == 0 and columns % tile.columns == 0, FEATURES=tile.features,
        COLUMNS=tile.columns, num_warps=tile.num_warps, pdl=pdl,
    )  # fmt: skip


def few_rows(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    tile: LinearTile,
    bias: torch.Tensor | None = None,
    activation: ActivationKind | None = None,
    accumulate: bool = False,
    parts: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """out = activation(x @ weight.T + bias) of few rows, or out += that, as Linear does.

    x: a span [M, K]. out: a span [M, N]. parts: f32 [tile.splits, M, N], contiguous, where a tile has shares: they are
    written there, and `sum_parts` makes `out` of them.
    """
    (rows, columns), features = x.shape, weight.shape[0]
    is_split = tile.splits > 1
    target = target_of(out, parts, tile.splits)
    share = triton.cdiv(triton.cdiv(columns, tile.splits), tile.columns) * tile.columns
    is_full = features % tile.features == 0 and columns % tile.columns == 0 and (tile.splits - 1) * share < columns
    launch(
        few_rows_kernel, (triton.cdiv(features, tile.features), tile.splits, triton.cdiv(rows, tile.padded(rows))), x,
        weight, x if bias is None else bias, target, rows, features, columns, share, row_stride(x), row_stride(weight),
        features if is_split else row_stride(out), rows * features if is_split else 0,
        ACTIVATION=ACTIVATIONS[None if is_split else activation], BIAS=bias is not None and not is_split,
        ADD=accumulate and not is_split, FULL=is_full, ROWS=tile.padded(rows), FEATURES=tile.features,
        COLUMNS=tile.columns, STAGES=tile.num_stages, num_warps=tile.num_warps, pdl=pdl,
    )  # fmt: skip
    if parts is not None and is_split:
        sum_parts(parts, out, bias, activation, accumulate, pdl)


def target_of(out: torch.Tensor, parts: torch.Tensor | None, splits: int) -> torch.Tensor:
    """Returns where the kernel writes. Raises ValueError if there is no room for shares."""
    if splits == 1:
        return out
    if parts is None or parts.shape != (splits, *out.shape) or not parts.is_contiguous():
        raise ValueError(f"{splits} shares need parts of shape {[splits, *out.shape]}")
    return parts


def sum_parts(
    parts: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: ActivationKind | None = None,
    accumulate: bool = False,
    pdl: bool = False,
) -> None:
    """out = activation(sum of parts + bias), or out += that. parts: f32 [P, M, N], contiguous. out: a span [M, N]."""
    count, rows, width = parts.shape
    launch(
        sum_parts_kernel, (rows, triton.cdiv(width, 1024)), parts, out if bias is None else bias, out, width,
        rows * width, row_stride(out), PARTS=count, ACTIVATION=ACTIVATIONS[activation], BIAS=bias is not None,
        ADD=accumulate, BLOCK=1024, num_warps=4, pdl=pdl,
    )  # fmt: skip
