"""The gated short convolution block."""

from appliance.layers.program import ProgramBuilder, Projection
from appliance.layers.recurrent_spec import ShortConvSpec
from appliance.program.operators import GatedActivation
from appliance.program.slots import Slot, whole
from appliance.program.states import ShortConv


def emit_short_conv(builder: ProgramBuilder, spec: ShortConvSpec, prefix: str, x: Slot) -> Slot:
    """Emits the convolution of x [T, D], without its output projection; returns a slot [T, D]."""
    width, name = x.width, f"{prefix}.conv"
    parts = [Projection(f"{name}.{part}", width, spec.in_bias) for part in ("b", "c", "x")]
    b, c, inner = builder.project(x, parts, builder.slot("conv_in", 3 * width))
    gated = builder.slot("conv_gated", width)
    builder.emit(GatedActivation(b, inner, gated, None))
    weight = builder.weight(f"{name}.weight", width * spec.kernel_size)
    bias = builder.weight(f"{name}.weight.bias", width) if spec.conv_bias else None
    builder.carry(ShortConv(whole(gated), weight, whole(gated), 0, spec.kernel_size, bias))
    out = builder.slot("conv_out", width)
    builder.emit(GatedActivation(c, whole(gated), out, None))
    return out
