"""Elementwise activations, alone and of a gate: operators Activation and GatedActivation."""

from typing import Final

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.launch import after_previous, launch, row_stride
from appliance.program.record import ActivationKind

# The number by which kernels know a kind; 0 leaves numbers as they are.
ACTIVATIONS: Final[dict[ActivationKind | None, int]] = {
    None: 0, "silu": 1, "gelu": 2, "gelu_tanh": 3, "relu": 4, "relu2": 5, "sigmoid": 6,
}  # fmt: skip
_BLOCK = 1024


@triton.jit
def activate(x, KIND: tl.constexpr):
    """x f32 -> kind(x); KIND is a number of ACTIVATIONS."""
    if KIND == 1:
        x = x * tl.sigmoid(x)
    elif KIND == 2:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == 3:  # 1 + tanh(y) = 2 * sigmoid(2 * y)
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif KIND == 4:
        x = tl.maximum(x, 0.0)
    elif KIND == 5:
        x = tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
    elif KIND == 6:
        x = tl.sigmoid(x)
    return x


@triton.jit
def activation_kernel(
    gate, up, out, gate_stride, up_stride, out_stride, width,
    KIND: tl.constexpr, GATED: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a row and BLOCK columns."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_live = column < width
    after_previous(PDL)
    y = activate(tl.load(gate + row * gate_stride + column, mask=is_live, other=0.0).to(tl.float32), KIND)
    if GATED:
        y *= tl.load(up + row * up_stride + column, mask=is_live, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + column, y.to(out.dtype.element_ty), mask=is_live)


def activation(x: torch.Tensor, out: torch.Tensor, kind: ActivationKind, pdl: bool = False) -> None:
    """out = kind(x), both spans [rows, width]; out may be x."""
    _launch(x, None, out, kind, pdl)


def gated_activation(
    gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, kind: ActivationKind | None, pdl: bool = False
) -> None:
    """out = kind(gate) * up, all spans [rows, I]; without a kind it is their product. out may be gate or up."""
    _launch(gate, up, out, kind, pdl)


def _launch(
    gate: torch.Tensor, up: torch.Tensor | None, out: torch.Tensor, kind: ActivationKind | None, pdl: bool
) -> None:
    rows, width = out.shape
    launch(
        activation_kernel, (rows, triton.cdiv(width, _BLOCK)), gate, gate if up is None else up, out, row_stride(gate),
        0 if up is None else row_stride(up), row_stride(out), width, KIND=ACTIVATIONS[kind], GATED=up is not None,
        BLOCK=_BLOCK, num_warps=4, pdl=pdl,
    )  # fmt: skip
