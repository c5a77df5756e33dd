"""A matrix for each head, as latent attention has them around its cache; operator HeadLinear."""

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.launch import after_previous, launch, power_of_two, row_stride
from appliance.kernels.gpu.triton.linear import MOST_ROWS, weight_tile

_FEATURES, _COLUMNS = 64, 64  # of a program's step


@triton.jit(do_not_specialize=["rows"])
def head_linear_kernel(
    x, weight, tail, out, rows, features, x_stride, weight_stride, tail_stride, out_stride,
    IN_DIM: tl.constexpr, TAIL: tl.constexpr, TAIL_COLUMNS: tl.constexpr, FULL: tl.constexpr,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs: FEATURES rows of a head's matrix, or its tail where there are no more; a head; and ROWS rows of x."""
    head = tl.program_id(1)
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    row = (tl.program_id(2) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_row = row < rows
    if tl.program_id(0) * FEATURES < features:
        column = tl.arange(0, COLUMNS)
        is_feature = (feature < features)[:, None]
        pointers = weight + (head * features + feature).to(tl.int64)[:, None] * weight_stride + column[None, :]
        inputs = x + row[None, :] * x_stride + (head * IN_DIM + column)[:, None]
        first_tile = weight_tile(pointers, 0, IN_DIM, is_feature, FULL)
        after_previous(PDL)
        block = tl.load(inputs, mask=is_row[None, :] & (column < IN_DIM)[:, None], other=0.0)
        acc = tl.dot(first_tile.to(block.dtype), block, input_precision="ieee")
        for first in tl.range(COLUMNS, IN_DIM, COLUMNS, num_stages=STAGES):
            matrix = weight_tile(pointers, first, IN_DIM, is_feature, FULL)
            block = tl.load(inputs + first, mask=is_row[None, :] & (column < IN_DIM - first)[:, None], other=0.0)
            acc = tl.dot(matrix.to(block.dtype), block, acc, input_precision="ieee")
        at = row[None, :] * out_stride + (head * (features + TAIL) + feature)[:, None]
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=is_feature & is_row[None, :])
    else:
        after_previous(PDL)
        place = tl.arange(0, TAIL_COLUMNS)[None, :]
        is_live = is_row[:, None] & (place < TAIL)
        copied = tl.load(tail + row[:, None] * tail_stride + head * TAIL + place, mask=is_live, other=0.0)
        copied_to = row[:, None] * out_stride + head * (features + TAIL) + features + place
        tl.store(out + copied_to, copied.to(out.dtype.element_ty), mask=is_live)


def head_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    tail: torch.Tensor | None,
    out: torch.Tensor,
    num_heads: int,
    batch_invariant: bool = False,
    pdl: bool = False,
) -> None:
    """out of head h = concat(weight_h @ x_h, tail_h), as HeadLinear has it.

    x: a span [rows, H * K]. weight: [H * M, K] of any stride between rows. tail: a span [rows, H * R]. out: a span
    [rows, H * (M + R)]. batch_invariant: a row rounds alike beside any number of others.
    """
    rows, features, columns = x.shape[0], weight.shape[0] // num_heads, weight.shape[1]
    width = 0 if tail is None else tail.shape[1] // num_heads
    tile_rows = MOST_ROWS if batch_invariant else min(MOST_ROWS, max(16, power_of_two(rows)))
    tiles = triton.cdiv(features, _FEATURES) + (tail is not None)
    depth = min(_COLUMNS, max(16, power_of_two(columns)))
    launch(
        head_linear_kernel, (tiles, num_heads, triton.cdiv(rows, tile_rows)), x, weight, x if tail is None else tail,
        out, rows, features, row_stride(x), row_stride(weight), 0 if tail is None else row_stride(tail),
        row_stride(out), IN_DIM=columns, TAIL=width, TAIL_COLUMNS=power_of_two(max(1, width)),
        FULL=features % _FEATURES == 0 and columns % depth == 0, ROWS=tile_rows, FEATURES=_FEATURES, COLUMNS=depth,
        STAGES=3, num_warps=4, pdl=pdl,
    )  # fmt: skip
