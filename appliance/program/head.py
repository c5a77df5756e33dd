"""The output head of a program."""

from appliance.program.operators import Linear, StepProgram
from appliance.program.slots import Extent, whole


def screened_head(program: StepProgram) -> Linear | None:
    """Returns the last Linear if its plain products are the logits, without bias, activation or soft cap: a screen can
    then find the largest ones before all are computed. Returns None otherwise."""
    op = program.operators[-1]
    if not isinstance(op, Linear) or op.out != whole(program.logits) or op.x.slot.extent is not Extent.SAMPLED:
        return None
    return None if op.bias or op.activation or op.accumulate else op
