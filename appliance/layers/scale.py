"""Multipliers of activations."""

from appliance.layers.program import ProgramBuilder
from appliance.program.operators import Scale
from appliance.program.slots import Span


def emit_scale(builder: ProgramBuilder, x: Span, factor: float) -> None:
    """Emits x *= factor, and nothing for a factor of one."""
    if factor != 1.0:
        builder.emit(Scale(x, factor))
