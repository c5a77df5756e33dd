"""The output head of a program."""

from appliance.program.operators import Linear, StepProgram
from appliance.program.slots import Extent, whole


def screened_head(program: StepProgram) -> Linear | None:
    """The Linear that ends the program and alone makes its logits, with nothing but products: the largest of these can
    be told before all are computed. None where there is no such."""
    op = program.operators[-1]
    if not isinstance(op, Linear) or op.out != whole(program.logits) or op.x.slot.extent is not Extent.SAMPLED:
        return None
    return None if op.bias or op.activation or op.accumulate else op
