"""Operators row by row, for torch's CPU device: it computes the rest of a vector by another function than whole
vectors, so that an element rounds by where it lies. One row alone always lies in the same way."""

from typing import Any, Final

from appliance.kernels.gpu.operators.table import Run
from appliance.kernels.gpu.step import DeviceStep
from appliance.program import operators as ops
from appliance.program.ranks import Gather, Meet
from appliance.program.states import GatedDelta, RgLru, ShortConv, StateSpace

# These copy rows, exchange them, or go through whole sequences.
_AS_THEY_ARE: Final = (
    ops.GatherRows, ops.MeanRows, ops.WholeAttention, ops.KvWrite, ops.PagedAttention,
    GatedDelta, RgLru, ShortConv, StateSpace, Gather, Meet,
)  # fmt: skip


def one_by_one(run: Run, op: ops.Operator) -> Run:
    """Returns a function that runs an operator on each of its rows alone."""
    extents = {slot.extent for slot in op.slots()}
    if isinstance(op, _AS_THEY_ARE):
        return run
    (extent,) = extents

    def each(record: Any, step: DeviceStep) -> None:
        for at in range(step.num_rows(extent)):
            run(record, step.row(extent, at))

    return each
