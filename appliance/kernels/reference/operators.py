"""One function for each operator, on torch tensors. Shapes and formulas are those of appliance.program.operators."""

from collections.abc import Callable
from typing import Any

import torch

from appliance.kernels.reference import adapters, routing, states
from appliance.kernels.reference.activations import activate, xielu
from appliance.kernels.reference.attention import attend, attend_whole
from appliance.kernels.reference.step import Step
from appliance.kernels.reference.weights import quantize_activations
from appliance.program import operators as ops
from appliance.program.adapters import AdapterEmbed, AdapterExperts, AdapterLinear
from appliance.program.attention import HeadLinear, ScaleByPosition
from appliance.program.ranks import Gather, Meet
from appliance.program.record import NormKind
from appliance.program.routing import ChooseExperts, Experts, GatedAdd, MixExperts, PlaceExperts, SpreadExperts
from appliance.program.slots import Extent
from appliance.program.states import GatedDelta, RgLru, ShortConv, StateSpace
from appliance.program.streams import CorrectStreams, GaussianTopK, MatchMagnitude, MixStreams


def embed(op: ops.Embed, step: Step) -> None:
    table, token_ids = step.weights[op.table], step.token_ids
    first, last = (0, len(table)) if op.own is None else op.own
    if op.missing_row is not None:
        num_tokens = op.num_tokens or len(table)
        token_ids = torch.where(token_ids < num_tokens, token_ids, op.missing_row)
    # A row of another rank's token is any of this rank's: the gather puts the other's in its place.
    rows = table[token_ids.clamp(first, last - 1) - first if op.own else token_ids] * op.scale
    if step.embeds is not None and op.given_scale is not None:
        given, row_of = step.embeds
        rows = torch.where(row_of[:, None] >= 0, given[row_of.clamp(0)] * op.given_scale, rows)
    if op.position_table is not None:
        rows = rows + step.weights[op.position_table][step.positions + op.position_offset]
    if op.type_table is not None:
        rows = rows + step.weights[op.type_table][step.token_types]
    step.slot(op.out).copy_(rows)


def _residual_sum(op: ops.RmsNorm | ops.LayerNorm, step: Step) -> torch.Tensor:
    x = step.slot(op.x)
    return x if op.residual is None else step.slot(op.residual).add_(x * op.scale)


def _norm(x: torch.Tensor, kind: NormKind, eps: float) -> torch.Tensor:
    if kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _affine(x: torch.Tensor, weight: str | None, bias: str | None, step: Step) -> torch.Tensor:
    """x * weight + bias over its last dimensions; vectors are as long as these together."""
    if weight is not None:
        x = x * step.weights[weight].reshape(-1, x.shape[-1])
    return x if bias is None else x + step.weights[bias].reshape(-1, x.shape[-1])


def rms_norm(op: ops.RmsNorm, step: Step) -> None:
    x = _residual_sum(op, step)
    step.slot(op.out).copy_(_affine(_norm(x, "rms", op.eps), op.weight, None, step))


def layer_norm(op: ops.LayerNorm, step: Step) -> None:
    x = _residual_sum(op, step)
    step.slot(op.out).copy_(_affine(_norm(x, "layer", op.eps), op.weight, op.bias, step))


def head_norm(op: ops.HeadNorm, step: Step) -> None:
    x = step.span(op.x)
    heads = x.reshape(-1, op.num_heads, op.head_dim)
    step.span(op.out or op.x).copy_(_affine(_norm(heads, op.kind, op.eps), op.weight, op.bias, step).flatten(1))


def linear(op: ops.Linear, step: Step) -> None:
    x = step.span(op.x)
    if op.weight in step.activation_groups:
        x = quantize_activations(x, step.activation_groups[op.weight])
    y = x @ step.weights[op.weight].T
    if op.bias is not None:
        y = y + step.weights[op.bias].flatten()
    if op.activation is not None:
        y = activate(y, op.activation)
    out = step.span(op.out)
    out.copy_(out + y if op.accumulate else y)


def activation(op: ops.Activation, step: Step) -> None:
    x = step.slot(op.x)
    if op.kind == "xielu":
        assert op.parameters is not None, "xielu has parameters"
        step.slot(op.out).copy_(xielu(x, step.weights[op.parameters]))
    else:
        step.slot(op.out).copy_(activate(x, op.kind))


def gated_activation(op: ops.GatedActivation, step: Step) -> None:
    gate = step.span(op.gate)
    step.slot(op.out).copy_((gate if op.kind is None else activate(gate, op.kind)) * step.span(op.up))


def rope(op: ops.Rope, step: Step) -> None:
    x = step.span(op.x)
    heads = x.reshape(-1, op.num_heads, op.head_dim).clone()
    rotated = heads[..., : op.rotary_dim]
    angles = step.weights[op.table][step.positions][:, None, :]
    cos, sin = angles.chunk(2, dim=-1)
    if op.interleaved:
        first, second = rotated[..., 0::2].clone(), rotated[..., 1::2].clone()
        rotated[..., 0::2], rotated[..., 1::2] = first * cos - second * sin, second * cos + first * sin
    else:
        first, second = (half.clone() for half in rotated.chunk(2, dim=-1))
        rotated.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))
    x.copy_(heads.flatten(1))


def kv_write(op: ops.KvWrite, step: Step) -> None:
    k = step.span(op.k).reshape(-1, op.num_kv_heads, op.head_dim)
    v = None if op.v is None else step.span(op.v).reshape(-1, op.num_kv_heads, op.value_dim or op.head_dim)
    step.caches[op.cache].write(step.slot_mapping[step.groups[op.cache]], k, v)


def paged_attention(op: ops.PagedAttention, step: Step) -> None:
    q = step.span(op.q).reshape(-1, op.num_heads, op.head_dim)
    out = step.slot(op.out)
    tables = step.block_tables[step.groups[op.cache]]
    sinks = None if op.sinks is None else step.weights[op.sinks].flatten()
    for sequence, length in enumerate(step.seq_lens):
        rows = slice(step.query_start[sequence], step.query_start[sequence + 1])
        keys, values = step.caches[op.cache].gather(tables[sequence], length)
        out[rows] = attend(op, q[rows], keys, values, sinks).flatten(1)


def whole_attention(op: ops.WholeAttention, step: Step) -> None:
    q, k, v = step.span(op.q), step.span(op.k), step.span(op.v)
    bias = None if op.bias is None else step.weights[op.bias]
    for sequence in range(len(step.seq_lens)):
        rows = slice(step.query_start[sequence], step.query_start[sequence + 1])
        step.slot(op.out)[rows] = attend_whole(op, q[rows], k[rows], v[rows], bias)


def mean_rows(op: ops.MeanRows, step: Step) -> None:
    x, starts = step.slot(op.x), torch.tensor(step.query_start)
    for row, token in enumerate(step.sampled_rows):
        sequence = int(torch.searchsorted(starts, token, right=True)) - 1
        step.slot(op.out)[row] = x[starts[sequence] : starts[sequence + 1]].mean(0)


def add(op: ops.Add, step: Step) -> None:
    step.slot(op.out).add_(step.slot(op.x))


def copy(op: ops.Copy, step: Step) -> None:
    step.span(op.out).copy_(step.span(op.x))


def gather_rows(op: ops.GatherRows, step: Step) -> None:
    step.slot(op.out).copy_(step.slot(op.x)[step.sampled_rows])


def soft_cap(op: ops.SoftCap, step: Step) -> None:
    x = step.slot(op.x)
    x.copy_(op.cap * torch.tanh(x / op.cap))


def route(op: ChooseExperts, step: Step) -> None:
    correction = None if op.correction is None else step.weights[op.correction].flatten()
    experts, factors = routing.choose(op, step.slot(op.logits), op.experts.width, correction)
    if op.expert_scale is not None:
        factors = factors * step.weights[op.expert_scale].flatten()[experts.long()]
    step.slot(op.experts).copy_(experts)
    step.slot(op.factors).copy_(factors)


def experts(op: Experts, step: Step) -> None:
    x, chosen, factors = (step.slot(slot) for slot in (op.x, op.experts, op.factors))
    step.slot(op.out).copy_(routing.mixture(op, x, chosen, factors, step.weights, step.activation_groups))


def gated_add(op: GatedAdd, step: Step) -> None:
    step.slot(op.out).add_(torch.sigmoid(step.slot(op.gate)) * step.slot(op.x))


def scale_by_position(op: ScaleByPosition, step: Step) -> None:
    steps = torch.div(step.positions + op.offset, op.length, rounding_mode="floor")
    step.span(op.x).mul_(1 + op.scale * torch.log1p(steps.float())[:, None])


def head_linear(op: HeadLinear, step: Step) -> None:
    x = step.span(op.x).reshape(-1, op.num_heads, op.x.width // op.num_heads)
    if op.weight in step.activation_groups:
        x = quantize_activations(x, step.activation_groups[op.weight])
    weight = step.weights[op.weight].reshape(op.num_heads, -1, x.shape[-1])
    parts = [torch.einsum("thk,hmk->thm", x, weight)]
    if op.tail is not None:
        parts.append(step.span(op.tail).reshape(len(x), op.num_heads, -1))
    step.slot(op.out).copy_(torch.cat(parts, dim=-1).flatten(1))


def short_conv(op: ShortConv, step: Step) -> None:
    y = states.short_conv(op, step.span(op.x), step.weights, step.states[op.state], step.pieces)
    step.span(op.out).copy_(y)


def gated_delta(op: GatedDelta, step: Step) -> None:
    spans = {name: step.span(getattr(op, name)) for name in ("q", "k", "v", "decay", "beta")}
    step.span(op.out).copy_(states.gated_delta(op, spans, step.weights, step.states[op.state], step.pieces))


def state_space(op: StateSpace, step: Step) -> None:
    spans = {name: step.span(getattr(op, name)) for name in ("x", "b", "c", "dt")}
    step.span(op.out).copy_(states.state_space(op, spans, step.weights, step.states[op.state], step.pieces))


def rg_lru(op: RgLru, step: Step) -> None:
    spans = {name: step.span(getattr(op, name)) for name in ("x", "input_gate", "recurrence_gate")}
    begins = step.positions == 0
    step.span(op.out).copy_(states.rg_lru(op, spans, begins, step.weights, step.states[op.state], step.pieces))


def scale(op: ops.Scale, step: Step) -> None:
    step.span(op.x).mul_(op.factor)


def scale_by_weight(op: ops.ScaleByWeight, step: Step) -> None:
    step.slot(op.out).copy_(step.slot(op.x) * step.weights[op.weight].flatten())


def gaussian_top_k(op: GaussianTopK, step: Step) -> None:
    x = step.span(op.x)
    apart = x - x.mean(-1, keepdim=True)
    x.copy_(torch.relu(apart - op.num_deviations * apart.square().mean(-1, keepdim=True).sqrt()))


def mix_streams(op: MixStreams, step: Step) -> None:
    streams = torch.stack([step.slot(slot) for slot in op.streams])
    coefficients = step.slot(op.coefficients).reshape(-1, len(streams), len(streams))
    for slot, mixed in zip(op.streams, torch.einsum("tji,itd->jtd", coefficients, streams), strict=True):
        step.slot(slot).add_(mixed)


def correct_streams(op: CorrectStreams, step: Step) -> None:
    change = step.slot(op.target) - step.slot(op.streams[0])
    for slot, factor in zip(op.streams, step.slot(op.coefficients).T, strict=True):
        step.slot(slot).add_((1 + factor[:, None]) * change)


def match_magnitude(op: MatchMagnitude, step: Step) -> None:
    wanted, has = (step.slot(slot).square().mean(-1, keepdim=True) for slot in (op.reference, op.x))
    step.slot(op.x).mul_(torch.sqrt(wanted / has.clamp(min=op.least)))


def adapter_linear(op: AdapterLinear, step: Step) -> None:
    x, out, start = step.span(op.x), step.span(op.out), 0
    adapted = adapted_rows(op.x.slot.extent, step)
    for part, width in zip(op.parts, op.widths, strict=True):
        adapters.change_product(part, x, out[:, start : start + width], adapted)
        start += width


def adapter_embed(op: AdapterEmbed, step: Step) -> None:
    adapted = adapted_rows(op.out.extent, step)
    if step.embeds is not None:  # an adapter changes the table, and what was given is no row of it
        adapted = adapted._replace(slots=torch.where(step.embeds[1] < 0, adapted.slots, -1))
    adapters.change_rows(op.part, step.token_ids, step.slot(op.out), op.scale, adapted)


def adapter_experts(op: AdapterExperts, step: Step) -> None:
    x, chosen, factors = (step.slot(slot) for slot in (op.x, op.experts, op.factors))
    adapted = adapted_rows(op.x.extent, step)
    mixed = routing.mixture(op, x, chosen, factors, step.weights, step.activation_groups, adapted)
    step.slot(op.out).copy_(mixed)


def adapted_rows(extent: Extent, step: Step) -> adapters.AdaptedRows:
    """Returns the adapters of the rows of an extent."""
    assert step.step_adapters is not None, "the step has adapters"
    of = sequences_of(extent, step)
    slots, scales = (torch.from_numpy(each)[of] for each in (step.step_adapters.slots, step.step_adapters.scales))
    return adapters.AdaptedRows(slots, scales, step.adapters)


def sequences_of(extent: Extent, step: Step) -> torch.Tensor:
    """Returns the sequence of each row of an extent."""
    starts = torch.tensor(step.query_start)
    tokens = torch.arange(len(step.token_ids)) if extent is Extent.TOKENS else step.sampled_rows
    return torch.searchsorted(starts, tokens, right=True) - 1


def spread_experts(op: SpreadExperts, step: Step) -> None:
    assert step.spread is not None, "replicas have the experts among them"
    assert op.own is not None, "this one has some"
    brought = (step.slot(slot).numpy() for slot in (op.x, op.experts, op.factors))
    x, chosen, factors = map(torch.from_numpy, step.spread.together(op.x.extent, *brought))
    outputs = routing.outputs_apart(op, x, chosen, factors, step.weights, step.activation_groups)
    is_own = (op.own[0] <= chosen) & (chosen < op.own[1])
    num_rows = len(step.slot(op.out))
    apart = torch.from_numpy(step.spread.apart(op.x.extent, outputs.numpy(), is_own.numpy(), num_rows))
    step.slot(op.out).copy_((apart if op.weigh_input else step.slot(op.factors)[..., None] * apart).sum(1))


def mix_experts(op: MixExperts, step: Step) -> None:
    x, factors = step.slot(op.x), step.slot(op.factors)
    outputs = x.view(len(x), factors.shape[1], -1)
    step.slot(op.out).copy_((outputs if op.weigh_input else factors[..., None] * outputs).sum(1))


def place_experts(op: PlaceExperts, step: Step) -> None:
    places = step.tables[op.mixture].find(step.slot(op.experts).numpy())
    step.slot(op.out).copy_(torch.from_numpy(places))


def gather(op: Gather, step: Step) -> None:
    if step.exchange is None:
        return
    columns = step.span(op.x).numpy()
    if op.by_token:
        ids = step.token_ids
        tokens = ids if op.missing_row is None else torch.where(ids < op.starts[-1], ids, op.missing_row)
        step.exchange.gather_rows(columns, op.starts, tokens.numpy())
    elif op.experts is None:
        step.exchange.gather(columns, op.starts)
    else:
        step.exchange.gather_experts(columns, op.starts, step.slot(op.experts).numpy())


def meet(op: Meet, step: Step) -> None:
    """Does nothing: the ranks of this set have activations of their own."""


RUN: dict[type[Any], Callable[[Any, Step], None]] = {
    ops.Embed: embed,
    ops.RmsNorm: rms_norm,
    ops.LayerNorm: layer_norm,
    ops.HeadNorm: head_norm,
    ops.Linear: linear,
    ops.Activation: activation,
    ops.GatedActivation: gated_activation,
    ops.Rope: rope,
    ops.KvWrite: kv_write,
    ops.PagedAttention: paged_attention,
    ops.Add: add,
    ops.GatherRows: gather_rows,
    ops.SoftCap: soft_cap,
    ChooseExperts: route,
    Experts: experts,
    GatedAdd: gated_add,
    ScaleByPosition: scale_by_position,
    HeadLinear: head_linear,
    ShortConv: short_conv,
    GatedDelta: gated_delta,
    StateSpace: state_space,
    ops.Scale: scale,
    ops.WholeAttention: whole_attention,
    ops.MeanRows: mean_rows,
    ops.ScaleByWeight: scale_by_weight,
    GaussianTopK: gaussian_top_k,
    MixStreams: mix_streams,
    CorrectStreams: correct_streams,
    MatchMagnitude: match_magnitude,
    ops.Copy: copy,
    RgLru: rg_lru,
    AdapterLinear: adapter_linear,
    AdapterEmbed: adapter_embed,
    AdapterExperts: adapter_experts,
    MixExperts: mix_experts,
    PlaceExperts: place_experts,
    SpreadExperts: spread_experts,
    Gather: gather,
    Meet: meet,
}
