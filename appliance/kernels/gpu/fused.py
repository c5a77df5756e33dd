"""Neighbouring operators that one kernel of ours runs."""

import functools
from collections.abc import Mapping
from itertools import pairwise

from appliance.kernels.gpu.float8 import Float8Matrix
from appliance.kernels.gpu.matrices import DeviceMatrix
from appliance.kernels.gpu.operators import by_triton
from appliance.kernels.gpu.segments import Call
from appliance.kernels.gpu.step import DeviceStep
from appliance.program.operators import KvWrite, LayerNorm, Linear, Operator, RmsNorm, Rope
from appliance.program.slots import Slot, whole


def fuse(calls: list[Call], matrices: Mapping[str, DeviceMatrix], kept: Slot | None = None) -> list[Call]:
    """Returns the calls: of two that are one kernel, the first runs both and the second nothing. Norms round what FP8
    products alone read. kept: a slot that is read after the step.

    There is still a call for each operator, since times are told by operator.
    """
    fused = list(calls)
    for at, ((_, op), (_, write)) in enumerate(pairwise(calls)):
        if isinstance(op, Rope) and isinstance(write, KvWrite) and _ends_with(op, write):
            fused[at : at + 2] = (functools.partial(by_triton.rope_and_write, write), op), (_nothing, write)
    for at, (_, op) in enumerate(calls):
        readers = _products_of(at, calls, matrices) if isinstance(op, RmsNorm | LayerNorm) else []
        if readers and kept not in op.slots():
            norm = by_triton.rms_norm if isinstance(op, RmsNorm) else by_triton.layer_norm
            fused[at] = functools.partial(norm, rounds=True), op
            for reader in readers:
                fused[reader] = functools.partial(by_triton.linear, is_rounded=True), calls[reader][1]
    return fused


def _products_of(at: int, calls: list[Call], matrices: Mapping[str, DeviceMatrix]) -> list[int]:
    """Returns which calls read the result of the norm at `at`, if all of them round it to FP8; else none."""
    norm = calls[at][1]
    assert isinstance(norm, RmsNorm | LayerNorm), "a norm"
    readers: list[int] = []
    for later in range(at + 1, len(calls)):
        op = calls[later][1]
        if all(slot.buffer != norm.out.buffer for slot in op.slots()):
            continue
        if isinstance(op, Linear) and _rounds(op, norm.out, matrices):
            readers.append(later)
        elif isinstance(op, RmsNorm | LayerNorm) and op.out == norm.out and norm.out not in (op.x, op.residual):
            break  # the slot is used anew
        else:
            return []
    return readers


def _rounds(op: Linear, x: Slot, matrices: Mapping[str, DeviceMatrix]) -> bool:
    """Returns whether a product rounds all of x to FP8, and leaves x as it is."""
    is_float8 = isinstance(matrices.get(op.weight), Float8Matrix)
    return is_float8 and op.x == whole(x) and op.out.slot.buffer != x.buffer


def _ends_with(op: Rope, write: KvWrite) -> bool:
    """Returns whether the last heads that are rotated are the keys that are written."""
    ends = op.x.start + op.x.width == write.k.start + write.k.width
    return op.x.slot == write.k.slot and ends and op.x.start <= write.k.start and op.head_dim == write.head_dim


def _nothing(op: Operator, step: DeviceStep) -> None:
    pass
