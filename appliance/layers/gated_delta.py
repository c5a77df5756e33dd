"""The gated delta rule block: projections, one short convolution of q, k and v, the rule, and a gated norm of heads."""

from appliance.layers.program import ProgramBuilder, Projection
from appliance.layers.recurrent_spec import GatedDeltaSpec
from appliance.program.operators import GatedActivation, HeadNorm
from appliance.program.slots import Slot, Span, whole
from appliance.program.states import GatedDelta, ShortConv


def emit_gated_delta(builder: ProgramBuilder, spec: GatedDeltaSpec, prefix: str, x: Slot) -> Slot:
    """Emits the block over x [T, D], without its output projection; returns a slot [T, num_value_heads * value_dim]."""
    name, heads = f"{prefix}.delta", spec.num_value_heads
    widths = {"q": spec.key_width, "k": spec.key_width, "v": spec.value_width}
    low = {"z": spec.gate_rank, "decay": spec.decay_rank}
    full = {"z": spec.value_width, "decay": heads if spec.decay_rank is None else heads * spec.key_dim}
    own = {"beta": heads, **{part: rank or full[part] for part, rank in low.items()}}
    parts = [
        Projection(f"{name}.{part}.low" if low.get(part) else f"{name}.{part}", width)
        for part, width in (widths | own).items()
    ]
    spans = dict(
        zip(widths | own, builder.project(x, parts, builder.slot("delta_in", _sum(widths | own))), strict=True)
    )
    for part, rank in low.items():
        if rank is not None:
            wide = builder.slot(f"delta_{part}", full[part])
            (spans[part],) = builder.project(spans[part], [Projection(f"{name}.{part}", full[part])], wide)
    _emit_conv(builder, spec, name, spans, widths)
    out = builder.slot("delta_out", spec.value_width)
    _emit_rule(builder, spec, name, spans, out)
    norm = builder.weight(f"{name}.norm", spec.value_dim)
    builder.emit(HeadNorm(whole(out), norm, heads, spec.value_dim, spec.norm.eps, spec.norm.kind))
    gated = builder.slot("delta_gated", spec.value_width)
    builder.emit(GatedActivation(spans["z"], whole(out), gated, spec.gate))
    return gated


def _emit_conv(
    builder: ProgramBuilder, spec: GatedDeltaSpec, name: str, spans: dict[str, Span], widths: dict[str, int]
) -> None:
    """Emits one convolution over q, k and v, which lie side by side."""
    sizes = {f"{name}.conv.{part}": width * spec.kernel_size for part, width in widths.items()}
    weight, width = builder.concatenate(f"{name}.conv", sizes), _sum(widths)
    qkv = Span(spans["q"].slot, spans["q"].start, width)
    builder.carry(ShortConv(qkv, weight, qkv, 0, spec.kernel_size, kind="silu"))


def _emit_rule(builder: ProgramBuilder, spec: GatedDeltaSpec, name: str, spans: dict[str, Span], out: Slot) -> None:
    """Emits the rule, or one for each tile: within a tile, each value head has a key head of its own."""
    count = spec.num_tiles
    values = {part: _tiles(spans[part], count) for part in ("v", "decay", "beta")}
    for tile, written in enumerate(_tiles(whole(out), count)):
        own = f".{tile}" if spec.tiled else ""
        v, decay, beta = (values[part][tile] for part in ("v", "decay", "beta"))
        heads = spec.num_value_heads // count
        builder.carry(
            GatedDelta(
                q=spans["q"],
                k=spans["k"],
                v=v,
                decay=decay,
                beta=beta,
                a_log=builder.weight(f"{name}.a_log{own}", heads),
                dt_bias=builder.weight(f"{name}.dt_bias{own}", decay.width),
                out=written,
                state=0,
                num_key_heads=spec.num_key_heads,
                num_value_heads=heads,
                by_channel=spec.decay_rank is not None,
                beta_scale=spec.beta_scale,
            )
        )


def _tiles(span: Span, count: int) -> list[Span]:
    """Cuts a span into so many of equal width."""
    width = span.width // count
    return [Span(span.slot, span.start + tile * width, width) for tile in range(count)]


def _sum(widths: dict[str, int]) -> int:
    return sum(widths.values())
