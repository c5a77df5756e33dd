"""Operators of the reference set on given tensors, and the tensors that kernels are compared on."""

from dataclasses import dataclass, field

import torch

from appliance.kernels.reference.operators import RUN, Step
from appliance.program.operators import Operator
from appliance.program.slots import Extent, Slot, Span

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3}
DTYPES = tuple(TOLERANCES)


@dataclass
class OracleStep(Step):
    """A step whose buffers are f32 tensors by the index of their slot."""

    buffers: dict[int, torch.Tensor]
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    activation_groups: dict[str, int] = field(default_factory=dict)

    def slot(self, slot: Slot) -> torch.Tensor:
        return self.buffers[slot.index]

    def span(self, span: Span) -> torch.Tensor:
        return self.slot(span.slot)[:, span.start : span.start + span.width]


def run(op: Operator, step: OracleStep) -> None:
    RUN[type(op)](op, step)


def slot(index: int, width: int) -> Slot:
    return Slot(index, Extent.TOKENS, width)


def span_of(x: torch.Tensor, before: int = 3, after: int = 5) -> torch.Tensor:
    """Returns the numbers of x [rows, width] as columns of a wider tensor, of which the others are NaN."""
    wide = torch.full((x.shape[0], before + x.shape[1] + after), float("nan"), dtype=x.dtype)
    span = wide[:, before : before + x.shape[1]]
    span.copy_(x)
    return span


def rest_of(span: torch.Tensor, before: int = 3, after: int = 5) -> torch.Tensor:
    """Returns the columns beside a span of span_of."""
    whole = span.as_strided((span.shape[0], span.stride(0)), (span.stride(0), 1), span.storage_offset() - before)
    return torch.cat((whole[:, :before], whole[:, whole.shape[1] - after :]), dim=1)


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns normally distributed numbers that `dtype` has exactly."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def widened(x: torch.Tensor) -> torch.Tensor:
    """Returns a copy in f32."""
    return x.to(torch.float32, copy=True)


def assert_near(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    """The tolerance is of the largest magnitude that is wanted."""
    assert got.shape == want.shape
    difference = (got.float() - want.float()).abs().max()
    assert difference <= TOLERANCES[dtype] * max(1.0, float(want.abs().max())), float(difference)
