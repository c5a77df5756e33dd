"""The block of a real-gated linear recurrent unit."""

from appliance.layers.program import ProgramBuilder, Projection
from appliance.layers.recurrent_spec import RgLruSpec
from appliance.program.attention import HeadLinear
from appliance.program.operators import GatedActivation
from appliance.program.slots import Slot, Span, whole
from appliance.program.states import RgLru, ShortConv


def emit_rg_lru(builder: ProgramBuilder, spec: RgLruSpec, prefix: str, x: Slot) -> Slot:
    """Emits the block over x [T, D], without its output projection; returns a slot [T, width]."""
    name, width = f"{prefix}.lru", spec.width
    parts = [Projection(f"{name}.{part}", width, bias=True) for part in ("y", "x")]
    y, inner = builder.project(x, parts, builder.slot("lru_in", 2 * width))
    taps = builder.weight(f"{name}.conv", width * spec.kernel_size)
    builder.carry(ShortConv(inner, taps, inner, 0, spec.kernel_size, builder.weight(f"{name}.conv.bias", width)))
    out = builder.slot("lru_out", width)
    builder.carry(
        RgLru(
            x=inner,
            input_gate=_emit_gate(builder, spec, f"{name}.input_gate", inner),
            recurrence_gate=_emit_gate(builder, spec, f"{name}.recurrence_gate", inner),
            decay=builder.weight(f"{name}.decay", width),
            input_bias=builder.weight(f"{name}.input_gate.bias", width),
            recurrence_bias=builder.weight(f"{name}.recurrence_gate.bias", width),
            out=whole(out),
            state=0,
        )
    )
    gated = builder.slot("lru_gated", width)
    builder.emit(GatedActivation(y, whole(out), gated, spec.activation))
    return gated


def _emit_gate(builder: ProgramBuilder, spec: RgLruSpec, name: str, x: Span) -> Span:
    """Emits a gate's maps of the heads, without its bias."""
    size = spec.width // spec.num_heads
    heads = [f"{name}.{head}" for head in range(spec.num_heads)]
    out = builder.slot(name.rpartition(".")[2], spec.width)
    builder.emit(HeadLinear(x, builder.join(name, heads, size, size, role="linear"), out, spec.num_heads))
    return whole(out)
