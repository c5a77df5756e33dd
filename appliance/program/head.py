"""The output head of a program."""

from typing import NamedTuple

from appliance.program.operators import Linear, StepProgram
from appliance.program.ranks import Gather, Meet
from appliance.program.slots import Extent, whole


class ScreenedHead(NamedTuple):
    """A Linear whose plain products are the logits: of one of several ranks, those from `first_token` on. position: its
    place among the operators."""

    op: Linear
    position: int
    first_token: int


def screened_head(program: StepProgram) -> ScreenedHead | None:
    """Returns the last Linear if its plain products are the logits, without bias, activation or soft cap: a screen can
    then find the largest ones before all are computed. Returns None otherwise."""
    position = len(program.operators) - 1
    while isinstance(program.operators[position], Gather | Meet):
        position -= 1
    op = program.operators[position]
    if not isinstance(op, Linear) or op.out.slot != program.logits or op.x.slot.extent is not Extent.SAMPLED:
        return None
    if op.bias or op.activation or op.accumulate:
        return None
    is_all = op.out == whole(program.logits) or program.logits.index in program.shared
    return ScreenedHead(op, position, op.out.start) if is_all else None
