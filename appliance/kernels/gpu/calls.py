"""The calls by which a set on torch runs a program."""

from collections.abc import Mapping

from appliance.kernels.gpu.matrices import DeviceMatrix
from appliance.kernels.gpu.operators.one_by_one import one_by_one
from appliance.kernels.gpu.operators.table import implementation
from appliance.kernels.gpu.parts import Parts
from appliance.kernels.gpu.segments import Call
from appliance.program.operators import StepProgram


def calls_of(
    program: StepProgram, parts: Parts, matrices: Mapping[str, DeviceMatrix], *, is_by_rows: bool
) -> list[Call]:
    """Returns the operators of a program, each with the function that runs it."""
    calls = [(implementation(type(op), parts.table), op) for op in program.operators]
    if is_by_rows:
        return [(one_by_one(run, op), op) for run, op in calls]
    return calls if parts.fuse is None else parts.fuse(calls, matrices, program.kept)
