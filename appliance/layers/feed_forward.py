"""The feed-forward block, gated or plain."""

from appliance.layers.adapter import Adapter
from appliance.layers.program import ProgramBuilder, Projection
from appliance.layers.scale import emit_scale
from appliance.layers.spec import FeedForwardSpec
from appliance.program.operators import Activation, GatedActivation
from appliance.program.record import XIELU_PARAMETERS
from appliance.program.slots import Slot, whole
from appliance.program.streams import GaussianTopK


def emit_feed_forward(
    builder: ProgramBuilder, spec: FeedForwardSpec, prefix: str, x: Slot, out: Slot, adapter: Adapter | None = None
) -> None:
    """Emits out = down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate; x, out [rows, D].

    The weights are `<prefix>.gate`, `<prefix>.up` and `<prefix>.down`. adapter: of gate and up, where there is a gate.
    """
    inner = builder.slot("inner", spec.intermediate_size, x.extent)
    up = Projection(f"{prefix}.up", spec.intermediate_size, spec.bias)
    if spec.activation == "xielu":
        builder.project(x, [up], inner)
        numbers = {f"{prefix}.activation.{name}": 1 for name in XIELU_PARAMETERS}
        parameters = builder.concatenate(f"{prefix}.activation", numbers)
        builder.emit(Activation(inner, inner, spec.activation, parameters))
    elif spec.gated:
        gate = Projection(f"{prefix}.gate", spec.intermediate_size, spec.bias)
        both = builder.slot("gate_up", 2 * spec.intermediate_size, x.extent)
        gate_span, up_span = builder.project(x, [gate, up], both)
        if adapter is not None:
            adapter.emit(builder, "feed_forward", x, {"gate": gate_span, "up": up_span})
        emit_scale(builder, gate_span, spec.gate_scale)
        if spec.gate_deviations is not None:
            builder.emit(GaussianTopK(gate_span, spec.gate_deviations))
        builder.emit(GatedActivation(gate_span, up_span, inner, spec.activation))
    else:
        builder.project(x, [up], inner, spec.activation)
    emit_scale(builder, whole(inner), spec.down_scale)
    down_bias = spec.bias if spec.down_bias is None else spec.down_bias
    builder.project(inner, [Projection(f"{prefix}.down", out.width, down_bias)], out)
