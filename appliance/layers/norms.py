"""The norms of the residual stream, each fused with the addition before it."""

from appliance.layers.norm_spec import NormSpec
from appliance.layers.program import ProgramBuilder
from appliance.program.operators import LayerNorm, RmsNorm
from appliance.program.slots import Slot


def emit_norm(
    builder: ProgramBuilder,
    spec: NormSpec,
    name: str,
    x: Slot,
    out: Slot,
    residual: Slot | None = None,
    scale: float = 1.0,
) -> Slot:
    """Emits the norm of x into `out`; with `residual`, scale * x is first added to it and the sum is normed. Returns
    `out`."""
    weight = builder.weight(name, x.width) if spec.weight else None
    if spec.kind == "rms":
        if spec.bias:
            raise ValueError("an RMS norm has no bias")
        builder.emit(RmsNorm(x, weight, out, spec.eps, residual, scale))
    else:
        bias = builder.weight(f"{name}.bias", x.width) if spec.bias else None
        builder.emit(LayerNorm(x, weight, bias, out, spec.eps, residual, scale))
    return out
