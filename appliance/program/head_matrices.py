"""Matrices by head, which sets on torch keep as floats whatever their form in a checkpoint."""

from appliance.program.attention import HeadLinear
from appliance.program.operators import StepProgram


def head_matrices(program: StepProgram) -> frozenset[str]:
    """Returns the weights that nothing but a HeadLinear reads.

    They are a small part of a model, and each step reads all of them: made floats of once, they are multiplied as they
    are by kernels for few rows and by the library for many.
    """
    by_head = {op.weight for op in program.operators if isinstance(op, HeadLinear)}
    others = {name for op in program.operators if not isinstance(op, HeadLinear) for name in op.named(op.matrices)}
    return frozenset(by_head - others)
