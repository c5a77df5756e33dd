"""What adapters of low rank add to a product, for all adapters of a step at once; operator AdapterLinear.

A tile of rows goes through the slots that its rows have, and multiplies with the maps of each, which are found by their
addresses: first down to the rank, in shares of the columns, then up, added in the order of shares.
"""

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.launch import after_previous, launch, power_of_two, row_stride
from appliance.program.device_memory import ADAPTER_SHARES

_ROWS, _FEATURES, _COLUMNS = 16, 64, 64  # of a program's step


@triton.jit
def rows_of_tile(slots, rows, ROWS: tl.constexpr):
    """Returns the rows of a program's tile, int64, which of them are there, and their slots, negative for none."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_row = row < rows
    return row, is_row, tl.load(slots + row, mask=is_row, other=-1)


@triton.jit(do_not_specialize=["rows"])
def adapter_down_kernel(
    x, kind, table, slots, low, rows, x_stride, low_stride, num_slots, share,
    IN_DIM: tl.constexpr, RANK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs: ROWS rows, a part of the product, and a share of the columns of x. kind: of the maps' type."""
    part, split = tl.program_id(1), tl.program_id(2)
    place = tl.arange(0, RANK)
    after_previous(PDL)
    row, is_row, slot = rows_of_tile(slots, rows, ROWS)
    total = tl.zeros([ROWS, RANK], tl.float32)
    for each in tl.range(0, num_slots):
        is_mine = slot == each
        if tl.sum(is_mine.to(tl.int32), 0) > 0:
            entry = table + (part * num_slots + each) * 5
            rank = tl.load(entry + 2)
            down = tl.multiple_of(tl.load(entry).to(kind.dtype), 16)
            end = tl.where(rank > 0, tl.minimum(IN_DIM, (split + 1) * share), 0)
            for first in tl.range(split * share, end, COLUMNS):
                column = first + tl.arange(0, COLUMNS)
                is_column = column < end
                inputs = tl.load(
                    x + row[:, None] * x_stride + column[None, :], mask=is_mine[:, None] & is_column[None, :], other=0.0
                )
                maps = tl.load(
                    down + place[None, :] * IN_DIM + column[:, None],
                    mask=(place < rank)[None, :] & is_column[:, None],
                    other=0.0,
                )
                total = tl.dot(inputs, maps.to(inputs.dtype), total, input_precision="ieee")
    at = low + split * low_stride + (row[:, None] * tl.num_programs(1) + part) * RANK + place[None, :]
    tl.store(at, total, mask=is_row[:, None])


@triton.jit(do_not_specialize=["rows"])
def adapter_up_kernel(
    low, kind, table, slots, scales, out, rows, out_stride, low_stride, num_slots, num_parts,
    RANK: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs: ROWS rows, FEATURES columns of a part of the product, and the part."""
    part = tl.program_id(2)
    place, feature = tl.arange(0, RANK), tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    after_previous(PDL)
    row, is_row, slot = rows_of_tile(slots, rows, ROWS)
    start, width = tl.load(table + part * num_slots * 5 + 3), tl.load(table + part * num_slots * 5 + 4)
    is_feature = feature < width
    scale = tl.load(scales + row, mask=is_row, other=0.0)
    total = tl.zeros([ROWS, FEATURES], tl.float32)
    for each in tl.range(0, num_slots):
        is_mine = slot == each
        if tl.sum(is_mine.to(tl.int32), 0) > 0:
            entry = table + (part * num_slots + each) * 5
            rank = tl.load(entry + 2)
            up = tl.load(entry + 1).to(kind.dtype)
            at = low + (row[:, None] * num_parts + part) * RANK + place[None, :]
            inner = tl.zeros([ROWS, RANK], tl.float32)
            for split in tl.static_range(SPLITS):
                inner += tl.load(at + split * low_stride, mask=is_mine[:, None], other=0.0)
            maps = tl.load(
                up + feature[None, :] * rank + place[:, None],
                mask=(place < rank)[:, None] & is_feature[None, :],
                other=0.0,
            )
            inner = (inner * scale[:, None]).to(out.dtype.element_ty)
            total = tl.dot(inner, maps.to(inner.dtype), total, input_precision="ieee")
    target = out + row[:, None] * out_stride + start + feature[None, :]
    is_live = (is_row & (slot >= 0))[:, None] & is_feature[None, :]
    before = tl.load(target, mask=is_live, other=0.0).to(tl.float32)
    tl.store(target, (before + total).to(out.dtype.element_ty), mask=is_live)


def add_adapters(
    x: torch.Tensor,
    out: torch.Tensor,
    table: torch.Tensor,
    kind: torch.Tensor,
    slots: torch.Tensor,
    scales: torch.Tensor,
    workspace: torch.Tensor,
    max_rank: int,
    max_width: int,
    pdl: bool = False,
) -> None:
    """out[t] += scale * up @ down @ x[t], part by part, for each row with an adapter.

    x: a span [rows, D]. out: a span of all parts. table: int64 [parts, slots, TABLE_ENTRIES] (gpu.adapters); maps are
    contiguous and begin at multiples of 16 bytes. kind: any tensor of the maps' type. slots: int32 [rows], negative for
    none. scales: f32 [rows]. workspace: f32 [ADAPTER_SHARES * rows * parts * padded_rank(max_rank)] or more. max_width:
    of the widest part.
    """
    (rows, columns), (parts, num_slots, _) = x.shape, table.shape
    rank, tiles = padded_rank(max_rank), triton.cdiv(rows, _ROWS)
    share = triton.cdiv(triton.cdiv(columns, ADAPTER_SHARES), _COLUMNS) * _COLUMNS
    low_stride = rows * parts * rank
    launch(
        adapter_down_kernel, (tiles, parts, ADAPTER_SHARES), x, kind, table, slots, workspace, rows, row_stride(x),
        low_stride, num_slots, share, IN_DIM=columns, RANK=rank, ROWS=_ROWS, COLUMNS=_COLUMNS, num_warps=4, pdl=pdl,
    )  # fmt: skip
    launch(
        adapter_up_kernel, (tiles, triton.cdiv(max_width, _FEATURES), parts), workspace, kind, table, slots, scales,
        out, rows, row_stride(out), low_stride, num_slots, parts, RANK=rank, SPLITS=ADAPTER_SHARES, ROWS=_ROWS,
        FEATURES=_FEATURES, num_warps=4, pdl=pdl,
    )  # fmt: skip


def padded_rank(max_rank: int) -> int:
    """Returns the columns that a rank takes in a product."""
    return max(16, power_of_two(max_rank))
