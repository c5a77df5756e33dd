"""Activations rounded to e4m3, a scale a token (kernels/gpu/float8.py): as codes, or as the numbers that these are."""

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.codes import decode
from appliance.kernels.gpu.triton.launch import after_previous, launch, power_of_two, row_stride


@triton.jit
def e4m3_codes(x):
    """Rounds f32 of at most 448 in size to codes of e4m3, nearest even; what is not finite becomes NaN."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    code = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    small = (tl.abs(x) * 512.0 + 8388608.0).to(tl.int32, bitcast=True) & 15  # multiples of 2^-9, below 2^-6
    code = tl.where(size < (121 << 23), small, code)
    code = tl.where(size > (136 << 23), 127, code)
    return code | ((bits >> 24) & 128)


@triton.jit
def power_scale(most):
    """Returns the exponent (of f32, with its bias) of the least power of two that brings `most` to 448 at most."""
    exponent = (tl.div_rn(most, most * 0.0 + 448.0).to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23
    return tl.minimum(tl.maximum(exponent, 27), 227)


@triton.jit
def rounded_rows(x):
    """x f32 [rows, columns], zero beyond a row -> the numbers that its codes are."""
    exponent = power_scale(tl.max(tl.abs(x), 1))[:, None]
    codes = e4m3_codes(x * ((254 - exponent) << 23).to(tl.float32, bitcast=True))
    return decode(codes, codes, 0, 8, 3, 0) * (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def round_rows_kernel(
    x, out, scales, x_stride, out_stride, width, CODES: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """One program a row. The scale is a power of two, whose exponent is that of largest / 448, rounded up."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_live = column < width
    after_previous(PDL)
    v = tl.load(x + row * x_stride + column, mask=is_live, other=0.0).to(tl.float32)
    exponent = power_scale(tl.max(tl.abs(v), 0))
    codes = e4m3_codes(v * ((254 - exponent) << 23).to(tl.float32, bitcast=True))
    scale = (exponent << 23).to(tl.float32, bitcast=True)
    if CODES:
        tl.store(out + row * out_stride + column, codes.to(tl.uint8), mask=is_live)
        tl.store(scales + row, scale)
    else:
        numbers = decode(codes, scales, 0, 8, 3, 0) * scale
        tl.store(out + row * out_stride + column, numbers.to(out.dtype.element_ty), mask=is_live)


def round_rows(x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor | None = None, pdl: bool = False) -> None:
    """Rounds rows to e4m3 as float8.to_float8 does. x: a span [T, K].

    out: a span [T, K], of floats for the rounded numbers, or of uint8 for their codes, with scales f32 [T].
    """
    rows, width = x.shape
    launch(
        round_rows_kernel, (rows,), x, out, x if scales is None else scales, row_stride(x), row_stride(out), width,
        CODES=scales is not None, BLOCK=power_of_two(width), num_warps=8 if width <= 8192 else 16, pdl=pdl,
    )  # fmt: skip
