"""A feed-forward of experts: a router, the chosen experts, and what all tokens share."""

from collections.abc import Sequence

from appliance.layers.feed_forward import emit_feed_forward
from appliance.layers.norm_spec import NormSpec
from appliance.layers.norms import emit_norm
from appliance.layers.program import ProgramBuilder, Projection
from appliance.layers.spec import ExpertsSpec
from appliance.program.operators import Add
from appliance.program.routing import ChooseExperts, Experts, GatedAdd
from appliance.program.slots import Slot


def emit_experts(builder: ProgramBuilder, spec: ExpertsSpec, prefix: str, x: Slot, out: Slot, stream: Slot) -> None:
    """Emits out = the weighted sum of each token's experts, plus the shared block if there is one; x, out [rows, D].

    stream: the residual stream, of which experts and their router may have norms of their own.
    """
    experts, factors = _emit_route(builder, spec, prefix, x, stream)
    read = _normed(builder, spec.norm, f"{prefix}.experts_norm", stream, x)
    if spec.latent_size is None:
        _emit_experts(builder, spec, prefix, read, experts, factors, out)
    else:
        small = builder.slot("latent_in", spec.latent_size, x.extent)
        builder.project(read, [Projection(f"{prefix}.latent_in", spec.latent_size)], small)
        summed = builder.slot("latent_out", spec.latent_size, x.extent)
        _emit_experts(builder, spec, prefix, small, experts, factors, summed)
        builder.project(summed, [Projection(f"{prefix}.latent_out", out.width)], out)
    if spec.norm is not None:
        emit_norm(builder, spec.norm, f"{prefix}.post_experts_norm", out, out)
    _emit_shared(builder, spec, prefix, x, out)


def _normed(builder: ProgramBuilder, norm: NormSpec | None, name: str, stream: Slot, x: Slot) -> Slot:
    """Returns the norm of the stream in a slot of its own; x if there is no norm."""
    return (
        x if norm is None else emit_norm(builder, norm, name, stream, builder.slot("experts_normed", x.width, x.extent))
    )


def _emit_experts(
    builder: ProgramBuilder, spec: ExpertsSpec, prefix: str, x: Slot, experts: Slot, factors: Slot, out: Slot
) -> None:
    names = [f"{prefix}.experts.{expert}" for expert in range(spec.num_experts)]
    gate, up = _gate_and_up(builder, spec, names)
    builder.emit(
        Experts(
            x=x,
            experts=experts,
            factors=factors,
            up=_join(builder, names, up, spec.width, x.width),
            down=_join(builder, names, ("down",), out.width, spec.width),
            out=out,
            num_experts=spec.num_experts,
            width=spec.width,
            kind=spec.activation,
            is_gated=spec.gated,
            gate=_join(builder, names, gate, spec.width, x.width) if gate else None,
            gate_bias=_join_biases(builder, names, gate, spec.width) if gate and spec.bias else None,
            up_bias=_join_biases(builder, names, up, spec.width) if spec.bias else None,
            down_bias=_join_biases(builder, names, ("down",), out.width) if spec.bias else None,
            limit=spec.limit,
            alpha=spec.alpha,
            up_offset=spec.up_offset,
            weigh_input=spec.weigh_input,
        )
    )


def _emit_route(builder: ProgramBuilder, spec: ExpertsSpec, prefix: str, x: Slot, stream: Slot) -> tuple[Slot, Slot]:
    """Returns the slots of the chosen experts and of their factors. The router's weight is always f32, because its
    rounding decides near ties."""
    routing, name = spec.routing, f"{prefix}.router"
    logits = builder.slot("router", spec.num_experts, x.extent)
    read = _normed(builder, routing.norm, f"{name}.norm", stream, x)
    builder.project(read, [Projection(name, spec.num_experts, routing.bias, role="other")], logits)
    experts = builder.slot("experts", spec.num_chosen, x.extent, "int32")
    factors = builder.slot("factors", spec.num_chosen, x.extent)
    builder.emit(
        ChooseExperts(
            logits=logits,
            experts=experts,
            factors=factors,
            scoring=routing.scoring,
            correction=builder.weight(f"{name}.correction", spec.num_experts) if routing.correction else None,
            renormalize=routing.renormalize,
            scale=routing.scale,
            num_groups=routing.num_groups,
            num_chosen_groups=routing.num_chosen_groups,
            group_scoring=routing.group_scoring,
            expert_scale=builder.weight(f"{name}.expert_scale", spec.num_experts) if routing.expert_scale else None,
            jitter=routing.jitter,
        )
    )
    return experts, factors


def _gate_and_up(
    builder: ProgramBuilder, spec: ExpertsSpec, names: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the parts of the gate's own weight and of the other: one weight has both if they are stored alike."""
    if not spec.gated:
        return (), ("up",)
    gates, ups = ({builder.layouts.get(f"{name}.{part}") for name in names} for part in ("gate", "up"))
    return ((), ("gate", "up")) if gates == ups else (("gate",), ("up",))


def _join(builder: ProgramBuilder, names: Sequence[str], parts: Sequence[str], rows: int, columns: int) -> str:
    name = f"{names[0].rpartition('.')[0]}.{'+'.join(parts)}"
    return builder.join(name, [f"{each}.{part}" for each in names for part in parts], rows, columns, role="linear")


def _join_biases(builder: ProgramBuilder, names: Sequence[str], parts: Sequence[str], size: int) -> str:
    name = f"{names[0].rpartition('.')[0]}.{'+'.join(parts)}.bias"
    return builder.join(name, [f"{each}.{part}.bias" for each in names for part in parts], size)


def _emit_shared(builder: ProgramBuilder, spec: ExpertsSpec, prefix: str, x: Slot, out: Slot) -> None:
    if spec.shared is None:
        return
    shared = builder.slot("shared", out.width, out.extent)
    emit_feed_forward(builder, spec.shared, f"{prefix}.shared", x, shared)
    if spec.norm is not None:
        emit_norm(builder, spec.norm, f"{prefix}.post_shared_norm", shared, shared)
    if not spec.shared_gate:
        builder.emit(Add(shared, out))
        return
    gate = builder.slot("shared_gate", 1, x.extent)
    builder.project(x, [Projection(f"{prefix}.shared_gate", 1, role="other")], gate)
    builder.emit(GatedAdd(shared, gate, out))
