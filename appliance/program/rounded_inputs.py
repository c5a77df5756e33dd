"""Which products of a program meet inputs that are rounded to FP8, where the plan rounds them."""

from appliance.program.operators import Linear, StepProgram


def rounded_weights(program: StepProgram) -> frozenset[str]:
    """Returns the weights whose inputs are rounded if they are FP8: those that nothing but a Linear reads."""
    linear = {op.weight for op in program.operators if isinstance(op, Linear)}
    others = {name for op in program.operators if not isinstance(op, Linear) for name in op.named(op.matrices)}
    return frozenset(linear - others)
