"""Rows picked from tables: operators Embed and GatherRows, for dense tables; quantized.dequantize has packed ones."""

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.launch import after_previous, launch, row_stride

_BLOCK = 1024


@triton.jit
def gather_kernel(
    ids, table, positions, position_table, types, type_table, out, num_rows, table_stride, position_stride, type_stride,
    out_stride, width, scale, missing_row, position_offset,
    MISSING: tl.constexpr, POSITIONS: tl.constexpr, TYPES: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a row and BLOCK columns."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_live = column < width
    after_previous(PDL)
    row = tl.load(ids + token).to(tl.int64)
    if MISSING:
        row = tl.where(row < num_rows, row, missing_row)
    y = tl.load(table + row * table_stride + column, mask=is_live, other=0.0).to(tl.float32) * scale
    if POSITIONS:
        row = tl.load(positions + token).to(tl.int64) + position_offset
        y += tl.load(position_table + row * position_stride + column, mask=is_live, other=0.0).to(tl.float32)
    if TYPES:
        row = tl.load(types + token).to(tl.int64)
        y += tl.load(type_table + row * type_stride + column, mask=is_live, other=0.0).to(tl.float32)
    tl.store(out + token * out_stride + column, y.to(out.dtype.element_ty), mask=is_live)


def gather_rows(
    table: torch.Tensor,
    ids: torch.Tensor,
    out: torch.Tensor,
    scale: float = 1.0,
    missing_row: int | None = None,
    positions: tuple[torch.Tensor, torch.Tensor, int] | None = None,
    types: tuple[torch.Tensor, torch.Tensor] | None = None,
    pdl: bool = False,
) -> None:
    """out[t] = table[ids[t]] * scale, as GatherRows does, plus rows of two further tables, as Embed does.

    table: a span [rows, D] of any float type. ids: int [T]. out: a span [T, D]. missing_row: read for ids beyond the
    table; without one there must be none. positions: int [T], a table, and what is added to positions. types: int [T],
    and a table.
    """
    (num_tokens, width), num_rows = out.shape, table.shape[0]
    places, place_table, offset = (ids, table, 0) if positions is None else positions
    kinds, kind_table = (ids, table) if types is None else types
    launch(
        gather_kernel, (num_tokens, triton.cdiv(width, _BLOCK)), ids, table, places, place_table, kinds, kind_table,
        out, num_rows, row_stride(table), row_stride(place_table), row_stride(kind_table), row_stride(out), width,
        scale, missing_row or 0, offset, MISSING=missing_row is not None, POSITIONS=positions is not None,
        TYPES=types is not None, BLOCK=_BLOCK, num_warps=4, pdl=pdl,
    )  # fmt: skip
