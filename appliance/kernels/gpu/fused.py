"""Neighbouring operators that one kernel of ours runs."""

import functools
from itertools import pairwise

from appliance.kernels.gpu.operators import by_triton
from appliance.kernels.gpu.segments import Call
from appliance.kernels.gpu.step import DeviceStep
from appliance.program.operators import KvWrite, Operator, Rope


def fuse(calls: list[Call]) -> list[Call]:
    """Returns the calls: of two that are one kernel, the first runs both and the second nothing.

    There is still a call for each operator, since times are told by operator.
    """
    fused = list(calls)
    for at, ((_, op), (_, write)) in enumerate(pairwise(calls)):
        if isinstance(op, Rope) and isinstance(write, KvWrite) and _ends_with(op, write):
            fused[at : at + 2] = (functools.partial(by_triton.rope_and_write, write), op), (_nothing, write)
    return fused


def _ends_with(op: Rope, write: KvWrite) -> bool:
    """Returns whether the last heads that are rotated are the keys that are written."""
    ends = op.x.start + op.x.width == write.k.start + write.k.width
    return op.x.slot == write.k.slot and ends and op.x.start <= write.k.start and op.head_dim == write.head_dim


def _nothing(op: Operator, step: DeviceStep) -> None:
    pass
