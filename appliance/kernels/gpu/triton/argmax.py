"""The largest logit of each row, in two kernels, so that one row keeps the whole device busy."""

from typing import Final

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.launch import after_previous, launch, row_stride

CHUNKS: Final = 32  # programs of a row
NO_TOKEN: Final = -1


@triton.jit
def argmax_part_kernel(
    logits, largest, index, stride, width, share, CHUNKS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """One program a row and chunk: its largest logit, and the lowest id that has it; -1 for NaN, the largest of all."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    after_previous(PDL)
    end = tl.minimum(width, (chunk + 1) * share)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    at = tl.full([BLOCK], 2147483647, tl.int32)
    for first in tl.range(chunk * share, end, BLOCK):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(logits + row * stride + column, mask=column < end, other=float("-inf")).to(tl.float32)
        is_number = x == x
        x = tl.where(is_number, x, float("inf"))
        at = tl.where(is_number, tl.where(x > best, column, at), -1)
        best = tl.maximum(best, x)
    top = tl.max(best, 0)
    tl.store(largest + row * CHUNKS + chunk, top)
    tl.store(index + row * CHUNKS + chunk, tl.min(tl.where(best == top, at, 2147483647), 0))


@triton.jit
def argmax_end_kernel(largest, index, out, CHUNKS: tl.constexpr, PDL: tl.constexpr):
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    after_previous(PDL)
    chunk = row * CHUNKS + tl.arange(0, CHUNKS)
    best = tl.load(largest + chunk)
    top = tl.max(best, 0)
    token = tl.min(tl.where(best == top, tl.load(index + chunk), 2147483647), 0)
    tl.store(out + row, tl.where(top == float("-inf"), -1, token))


def argmax(
    logits: torch.Tensor,
    out: torch.Tensor,
    largest: torch.Tensor,
    index: torch.Tensor,
    chunks: int = CHUNKS,
    pdl: bool = False,
) -> None:
    """out[r] = the id of the largest logit of row r, of equal ones the lowest.

    It is NO_TOKEN where a logit is NaN, or all are minus infinity. logits: a span [R, V]. out: int32
    [R]. largest: f32 [R * chunks] and index: int32 [R * chunks], workspaces. chunks: programs of a row, a power of two.
    """
    rows, width = logits.shape
    launch(
        argmax_part_kernel, (rows, chunks), logits, largest, index, row_stride(logits), width,
        triton.cdiv(width, chunks), CHUNKS=chunks, BLOCK=1024, num_warps=4, pdl=pdl,
    )  # fmt: skip
    launch(argmax_end_kernel, (rows,), largest, index, out, CHUNKS=chunks, num_warps=1, pdl=pdl)
