"""The state space block: Mamba 1 and Mamba 2 with their projections, convolution, gate and norms."""

from collections.abc import Mapping

from appliance.layers.norm_spec import NormSpec
from appliance.layers.program import ProgramBuilder, Projection
from appliance.layers.recurrent_spec import StateSpaceSpec
from appliance.layers.scale import emit_scale
from appliance.program.operators import GatedActivation, HeadNorm
from appliance.program.slots import Slot, Span, whole
from appliance.program.states import ShortConv, StateSpace


def emit_state_space(builder: ProgramBuilder, spec: StateSpaceSpec, prefix: str, x: Slot) -> Slot:
    """Emits the block over x [T, D], without its output projection; returns a slot [T, num_heads * head_dim]."""
    name = f"{prefix}.ssm"
    spans = _emit_selected_first(builder, spec, name, x) if spec.time_step_rank is None else {}
    spans = spans or _emit_selected_last(builder, spec, name, x)
    out = builder.slot("ssm_out", spec.width)
    _emit_scan(builder, spec, name, spans, out)
    if spec.norm is not None and spec.norm_before_gate:
        _emit_group_norm(builder, spec, spec.norm, name, out)
    gated = builder.slot("ssm_gated", spec.width)
    builder.emit(GatedActivation(spans["z"], whole(out), gated, "silu"))
    if spec.norm is not None and not spec.norm_before_gate:
        _emit_group_norm(builder, spec, spec.norm, name, gated)
    return gated


def _emit_selected_first(builder: ProgramBuilder, spec: StateSpaceSpec, name: str, x: Slot) -> dict[str, Span]:
    """Emits the projections of Mamba 2, and its convolution over x, b and c, which lie side by side."""
    selected = spec.num_groups * spec.state_size
    widths = {"z": spec.width, "x": spec.width, "b": selected, "c": selected, "dt": spec.num_heads}
    spans = _project(builder, spec, name, x, widths, "ssm_in")
    for span, factor in zip(spans.values(), spec.multipliers, strict=True):
        emit_scale(builder, span, factor)
    columns = Span(spans["x"].slot, spans["x"].start, spec.width + 2 * selected)
    _emit_conv(builder, spec, name, columns)
    return spans


def _emit_selected_last(builder: ProgramBuilder, spec: StateSpaceSpec, name: str, x: Slot) -> dict[str, Span]:
    """Emits the projections of Mamba 1: of x and z, and after the convolution those of b, c and dt."""
    rank, size = spec.time_step_rank or 0, spec.state_size
    spans = _project(builder, spec, name, x, {"z": spec.width, "x": spec.width}, "ssm_in")
    _emit_conv(builder, spec, name, spans["x"])
    widths = {"dt.low": rank, "b": size, "c": size}
    parts = [Projection(f"{name}.{part}", width) for part, width in widths.items()]
    found = builder.project(spans["x"], parts, builder.slot("ssm_selection", rank + 2 * size))
    low, spans["b"], spans["c"] = found
    if spec.selection_norm is not None:
        for part, span in zip(("dt", "b", "c"), found, strict=True):
            _emit_norm(builder, spec.selection_norm, f"{name}.{part}_norm", span)
    (spans["dt"],) = builder.project(low, [Projection(f"{name}.dt", spec.width)], builder.slot("ssm_dt", spec.width))
    return spans


def _project(
    builder: ProgramBuilder, spec: StateSpaceSpec, name: str, x: Slot, widths: Mapping[str, int], role: str
) -> dict[str, Span]:
    parts = [Projection(f"{name}.{part}", width, spec.in_bias) for part, width in widths.items()]
    return dict(zip(widths, builder.project(x, parts, builder.slot(role, sum(widths.values()))), strict=True))


def _emit_conv(builder: ProgramBuilder, spec: StateSpaceSpec, name: str, x: Span) -> None:
    weight = builder.weight(f"{name}.conv", x.width * spec.kernel_size)
    bias = builder.weight(f"{name}.conv.bias", x.width) if spec.conv_bias else None
    builder.carry(ShortConv(x, weight, x, 0, spec.kernel_size, bias, spec.activation))


def _emit_scan(builder: ProgramBuilder, spec: StateSpaceSpec, name: str, spans: dict[str, Span], out: Slot) -> None:
    by_state = spec.time_step_rank is not None
    builder.carry(
        StateSpace(
            x=spans["x"],
            b=spans["b"],
            c=spans["c"],
            dt=spans["dt"],
            a_log=builder.weight(f"{name}.a_log", spec.num_heads * (spec.state_size if by_state else 1)),
            d=builder.weight(f"{name}.d", spec.num_heads),
            out=whole(out),
            state=0,
            num_heads=spec.num_heads,
            num_groups=spec.num_groups,
            dt_bias=builder.weight(f"{name}.dt_bias", spec.num_heads),
            dt_min=spec.dt_min,
            dt_max=spec.dt_max,
            by_state=by_state,
        )
    )


def _emit_norm(builder: ProgramBuilder, spec: NormSpec, name: str, x: Span) -> None:
    weight = builder.weight(name, x.width) if spec.weight else None
    builder.emit(HeadNorm(x, weight, 1, x.width, spec.eps, spec.kind))


def _emit_group_norm(builder: ProgramBuilder, spec: StateSpaceSpec, norm: NormSpec, name: str, x: Slot) -> None:
    """Emits a norm of each group's columns, every column with a weight of its own."""
    weight, groups = builder.weight(f"{name}.norm", x.width), spec.num_groups
    builder.emit(HeadNorm(whole(x), weight, groups, x.width // groups, norm.eps, norm.kind, by_head=True))
