"""RMS and layer norms of rows and of heads; operators RmsNorm, LayerNorm and HeadNorm."""

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.launch import after_previous, launch, power_of_two, row_stride
from appliance.kernels.gpu.triton.rounding import rounded_rows
from appliance.program.record import NormKind

_HEAD_TILE = 4096  # numbers that one program of a head norm holds


@triton.jit
def normed(v, is_live, width, eps, LAYER: tl.constexpr):
    """v [heads, columns] f32, zero where not live -> v normed by row."""
    if LAYER:
        v = tl.where(is_live, v - (tl.sum(v, 1) / width)[:, None], 0.0)
    return v * tl.rsqrt(tl.sum(v * v, 1) / width + eps)[:, None]


@triton.jit(do_not_specialize=["part_stride"])
def norm_kernel(
    x, residual, weight, bias, out, x_stride, residual_stride, out_stride, part_stride, width, eps, scale,
    PARTS: tl.constexpr, RESIDUAL: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, LAYER: tl.constexpr,
    ROUND: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    is_live = column < width
    if WEIGHT:  # weights do not depend on the kernel before
        gain = tl.load(weight + column, mask=is_live, other=0.0).to(tl.float32)
    after_previous(PDL)
    v = tl.load(x + row * x_stride + column, mask=is_live, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        v += tl.load(x + part * part_stride + row * x_stride + column, mask=is_live, other=0.0)
    if RESIDUAL:
        at = residual + row * residual_stride + column
        total = tl.load(at, mask=is_live, other=0.0).to(tl.float32) + scale * v
        rounded = total.to(residual.dtype.element_ty)
        tl.store(at, rounded, mask=is_live)
        v = rounded.to(tl.float32)  # as who reads the residual later sees it
    y = normed(v, is_live, width, eps, LAYER)
    if WEIGHT:
        y *= gain
    if BIAS:
        y += tl.load(bias + column, mask=is_live, other=0.0).to(tl.float32)
    if ROUND:
        y = rounded_rows(tl.where(is_live, y.to(out.dtype.element_ty).to(tl.float32), 0.0))
    tl.store(out + row * out_stride + column, y.to(out.dtype.element_ty), mask=is_live)


@triton.jit
def head_norm_kernel(
    x, weight, bias, out, x_stride, out_stride, num_heads, head_dim, eps,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, BY_HEAD: tl.constexpr, LAYER: tl.constexpr,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a row and HEADS of its heads."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    is_live = (head < num_heads) & (column < head_dim)
    at = head * head_dim + column
    of_vector = at if BY_HEAD else column + 0 * head
    after_previous(PDL)
    v = tl.load(x + row * x_stride + at, mask=is_live, other=0.0).to(tl.float32)
    y = normed(v, is_live, head_dim, eps, LAYER)
    if WEIGHT:
        y *= tl.load(weight + of_vector, mask=is_live, other=0.0).to(tl.float32)
    if BIAS:
        y += tl.load(bias + of_vector, mask=is_live, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + at, y.to(out.dtype.element_ty), mask=is_live)


def norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    eps: float,
    kind: NormKind = "rms",
    residual: torch.Tensor | None = None,
    scale: float = 1.0,
    rounds: bool = False,
    pdl: bool = False,
) -> None:
    """Norms rows as RmsNorm and LayerNorm do; with `residual`, first residual += scale * x in place.

    x: a span [rows, D], or f32 [parts, rows, D] of a split product, which is summed on the way. out, residual: spans
    [rows, D]; out may be x. weight, bias: [D]. rounds: the result is rounded to e4m3, a scale a row (rounding.py).
    """
    parts, part_stride = (x.shape[0], x.stride(0)) if x.dim() == 3 else (1, 0)
    rows, width = out.shape
    launch(
        norm_kernel, (rows,), x, out if residual is None else residual, out if weight is None else weight,
        out if bias is None else bias, out, row_stride(x[0] if x.dim() == 3 else x),
        0 if residual is None else row_stride(residual), row_stride(out), part_stride, width, eps, scale,
        PARTS=parts, RESIDUAL=residual is not None, WEIGHT=weight is not None, BIAS=bias is not None,
        LAYER=kind == "layer", ROUND=rounds, BLOCK=power_of_two(width), num_warps=8 if width > 2048 else 4, pdl=pdl,
    )  # fmt: skip


def head_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    num_heads: int,
    eps: float,
    kind: NormKind = "rms",
    by_head: bool = False,
    pdl: bool = False,
) -> None:
    """Norms each head of x [rows, num_heads * head_dim] into out, which may be x, as HeadNorm does.

    weight, bias: [head_dim], or [num_heads * head_dim] with `by_head`.
    """
    rows, width = x.shape
    head_dim = width // num_heads
    block = power_of_two(head_dim)
    heads = min(power_of_two(num_heads), max(1, _HEAD_TILE // block))
    launch(
        head_norm_kernel, (rows, triton.cdiv(num_heads, heads)), x, out if weight is None else weight,
        out if bias is None else bias, out, row_stride(x), row_stride(out), num_heads, head_dim, eps,
        WEIGHT=weight is not None, BIAS=bias is not None, BY_HEAD=by_head, LAYER=kind == "layer",
        HEADS=heads, BLOCK=block, num_warps=4, pdl=pdl,
    )  # fmt: skip
