"""Encodes operator records as the C structs of the ABI."""

from collections.abc import Callable, Mapping
from typing import Any

from appliance.kernels.cpu import expert_records
from appliance.kernels.cpu import operator_structs as structs
from appliance.kernels.cpu.addresses import Addresses
from appliance.kernels.cpu.spans import c_span
from appliance.kernels.errors import BindError
from appliance.program import operators as ops
from appliance.program.adapters import Adapted, AdapterEmbed, AdapterExperts, AdapterLinear
from appliance.program.attention import HeadLinear, ScaleByPosition
from appliance.program.ranks import Gather, Meet
from appliance.program.routing import ChooseExperts, Experts, GatedAdd, MixExperts, PlaceExperts, SpreadExperts
from appliance.program.states import GatedDelta, RgLru, ShortConv, StateSpace
from appliance.program.streams import CorrectStreams, GaussianTopK, MatchMagnitude, MixStreams


def _embed(op: ops.Embed, at: Addresses) -> structs.Embed:
    position_table = None if op.position_table is None else at.matrix(op.position_table)
    types = None if op.type_table is None else at.table(op.type_table, op.out.width)
    return structs.Embed(
        table=at.matrix(op.table),
        position_table=position_table,
        out=c_span(op.out, at),
        scale=op.scale,
        position_offset=op.position_offset,
        type_table=None if types is None else types.ctypes.data,
        num_types=0 if types is None else types.shape[0],
        missing_row=-1 if op.missing_row is None else op.missing_row,
        first_own=0 if op.own is None else op.own[0],
        num_tokens=0 if op.own is None else op.num_tokens,
        takes_given=op.given_scale is not None,
        given_scale=op.given_scale or 0.0,
    )


def _norm(op: ops.RmsNorm | ops.LayerNorm, at: Addresses) -> structs.Norm:
    bias = op.bias if isinstance(op, ops.LayerNorm) else None
    return structs.Norm(
        x=c_span(op.x, at),
        out=c_span(op.out, at),
        residual=c_span(op.residual, at),
        weight=at.vector(op.weight, op.x.width),
        bias=at.vector(bias, op.x.width),
        eps=op.eps,
        scale=op.scale,
    )


def _head_norm(op: ops.HeadNorm, at: Addresses) -> structs.HeadNorm:
    size = op.x.width if op.by_head else op.head_dim
    return structs.HeadNorm(
        x=c_span(op.x, at),
        out=c_span(op.out or op.x, at),
        weight=at.vector(op.weight, size),
        bias=at.vector(op.bias, size),
        num_heads=op.num_heads,
        head_dim=op.head_dim,
        eps=op.eps,
        is_layer_norm=op.kind == "layer",
        by_head=op.by_head,
    )


def _linear(op: ops.Linear, at: Addresses) -> structs.Linear:
    return structs.Linear(
        x=c_span(op.x, at),
        out=c_span(op.out, at),
        weight=at.matrix(op.weight),
        bias=at.vector(op.bias, op.out.width),
        activation=structs.ACTIVATIONS[op.activation],
        accumulate=op.accumulate,
    )


def _pointwise(op: ops.Activation, at: Addresses) -> structs.Pointwise:
    parameters = at.vector(op.parameters, 4)
    return structs.Pointwise(c_span(op.x, at), c_span(op.out, at), parameters, structs.ACTIVATIONS[op.kind])


def _gated(op: ops.GatedActivation, at: Addresses) -> structs.Gated:
    return structs.Gated(c_span(op.gate, at), c_span(op.up, at), c_span(op.out, at), structs.ACTIVATIONS[op.kind])


def _rope(op: ops.Rope, at: Addresses) -> structs.Rope:
    table = at.table(op.table, op.rotary_dim)
    return structs.Rope(
        x=c_span(op.x, at),
        table=table.ctypes.data,
        table_rows=table.shape[0],
        num_heads=op.num_heads,
        head_dim=op.head_dim,
        rotary_dim=op.rotary_dim,
        interleaved=op.interleaved,
    )


def _kv_write(op: ops.KvWrite, at: Addresses) -> structs.KvWrite:
    return structs.KvWrite(c_span(op.k, at), c_span(op.v, at), op.cache)


def _attention(op: ops.PagedAttention, at: Addresses) -> structs.Attention:
    return structs.Attention(
        q=c_span(op.q, at),
        out=c_span(op.out, at),
        cache=op.cache,
        num_heads=op.num_heads,
        window=op.window or 0,
        scale=op.scale,
        soft_cap=op.soft_cap or 0.0,
        chunk=op.chunk or 0,
        sinks=at.vector(op.sinks, op.num_heads),
        slopes=None if op.slopes is None else at.numbers(op.slopes),
    )


def _whole_attention(op: ops.WholeAttention, at: Addresses) -> structs.WholeAttention:
    bias = None if op.bias is None else at.rows(op.bias, op.num_heads)
    return structs.WholeAttention(
        q=c_span(op.q, at),
        k=c_span(op.k, at),
        v=c_span(op.v, at),
        out=c_span(op.out, at),
        num_heads=op.num_heads,
        num_kv_heads=op.num_kv_heads,
        head_dim=op.head_dim,
        before=-1 if op.before is None else op.before,
        after=-1 if op.after is None else op.after,
        scale=op.scale,
        bias=None if bias is None else bias.ctypes.data,
        bias_reach=0 if bias is None else (bias.shape[1] + 1) // 2,
    )


def _move(op: ops.Add | ops.Copy | ops.GatherRows | ops.MeanRows, at: Addresses) -> structs.Move:
    return structs.Move(c_span(op.x, at), c_span(op.out, at))


def _soft_cap(op: ops.SoftCap, at: Addresses) -> structs.SoftCap:
    return structs.SoftCap(c_span(op.x, at), op.cap)


def _scale(op: ops.Scale, at: Addresses) -> structs.Scale:
    return structs.Scale(c_span(op.x, at), op.factor)


def _scale_by_weight(op: ops.ScaleByWeight, at: Addresses) -> structs.WeightScale:
    weight = at.vector(op.weight, 1 if op.is_one else op.x.width)
    return structs.WeightScale(c_span(op.x, at), c_span(op.out, at), weight, op.is_one)


def _gaussian_top_k(op: GaussianTopK, at: Addresses) -> structs.TopK:
    return structs.TopK(c_span(op.x, at), op.num_deviations)


def _streams(op: MixStreams | CorrectStreams, at: Addresses) -> structs.Streams:
    """Raises BindError for more streams than the library has places for."""
    if len(op.streams) > structs.MAX_STREAMS:
        raise BindError(f"{len(op.streams)} residual streams are more than the {structs.MAX_STREAMS} of this version")
    spans = (structs.Span * structs.MAX_STREAMS)(*(c_span(stream, at) for stream in op.streams))
    target = op.target if isinstance(op, CorrectStreams) else None
    return structs.Streams(spans, c_span(op.coefficients, at), c_span(target, at), len(op.streams))


def _match_magnitude(op: MatchMagnitude, at: Addresses) -> structs.Magnitude:
    return structs.Magnitude(c_span(op.x, at), c_span(op.reference, at), op.least)


def _gated_add(op: GatedAdd, at: Addresses) -> structs.GatedAdd:
    return structs.GatedAdd(c_span(op.x, at), c_span(op.gate, at), c_span(op.out, at))


def _scale_by_position(op: ScaleByPosition, at: Addresses) -> structs.PositionScale:
    return structs.PositionScale(x=c_span(op.x, at), length=op.length, offset=op.offset, scale=op.scale)


def _head_linear(op: HeadLinear, at: Addresses) -> structs.HeadLinear:
    spans = {"x": c_span(op.x, at), "out": c_span(op.out, at), "tail": c_span(op.tail, at)}
    return structs.HeadLinear(**spans, weight=at.matrix(op.weight), num_heads=op.num_heads)


def _short_conv(op: ShortConv, at: Addresses) -> structs.ShortConv:
    return structs.ShortConv(
        x=c_span(op.x, at),
        out=c_span(op.out, at),
        weight=at.vector(op.weight, op.x.width * op.kernel_size),
        bias=at.vector(op.bias, op.x.width),
        state=op.state,
        kernel_size=op.kernel_size,
        activation=structs.ACTIVATIONS[op.kind],
    )


def _gated_delta(op: GatedDelta, at: Addresses) -> structs.GatedDelta:
    return structs.GatedDelta(
        **{name: c_span(getattr(op, name), at) for name in ("q", "k", "v", "decay", "beta", "out")},
        a_log=at.vector(op.a_log, op.num_value_heads),
        dt_bias=at.vector(op.dt_bias, op.decay.width),
        state=op.state,
        num_key_heads=op.num_key_heads,
        num_value_heads=op.num_value_heads,
        by_channel=op.by_channel,
        beta_scale=op.beta_scale,
    )


def _state_space(op: StateSpace, at: Addresses) -> structs.StateSpace:
    rates = op.num_heads * (op.b.width // op.num_groups if op.by_state else 1)
    return structs.StateSpace(
        **{name: c_span(getattr(op, name), at) for name in ("x", "b", "c", "dt", "out")},
        a_log=at.vector(op.a_log, rates),
        d=at.vector(op.d, op.num_heads),
        dt_bias=at.vector(op.dt_bias, op.num_heads),
        state=op.state,
        num_heads=op.num_heads,
        num_groups=op.num_groups,
        by_state=op.by_state,
        dt_min=op.dt_min,
        dt_max=op.dt_max,
    )


def _rg_lru(op: RgLru, at: Addresses) -> structs.RgLru:
    return structs.RgLru(
        **{name: c_span(getattr(op, name), at) for name in ("x", "input_gate", "recurrence_gate", "out")},
        **{name: at.vector(getattr(op, name), op.x.width) for name in op.vectors},
        state=op.state,
    )


def _adapter_linear(op: AdapterLinear, at: Addresses) -> structs.AdapterLinear:
    return structs.AdapterLinear(x=c_span(op.x, at), out=c_span(op.out, at), num_parts=len(op.parts), **_maps(op, at))


def _adapter_embed(op: AdapterEmbed, at: Addresses) -> structs.AdapterEmbed:
    maps = _maps(op, at)
    del maps["widths"]
    return structs.AdapterEmbed(out=c_span(op.out, at), num_tokens=op.num_tokens, scale=op.scale, **maps)


def _adapter_experts(op: AdapterExperts, at: Addresses) -> structs.AdapterExperts:
    maps = _maps(op, at)
    del maps["widths"]
    return structs.AdapterExperts(experts=expert_records.experts(op, at), **maps)


def _maps(op: Adapted, at: Addresses) -> dict[str, int]:
    """Returns where the changes of adapters are, and their sizes."""
    assert at.adapters is not None, "a program with places for adapters has memory for them"
    widths, maps = at.adapters.encode(op)
    sizes = {"num_slots": at.adapters.num_slots, "max_rank": op.max_rank, "layout": at.adapters.layout}
    return {"widths": widths, "maps": maps, **sizes}


def _meeting(op: Gather | Meet, at: Addresses) -> structs.Meeting:
    ranks = at.ranks
    if ranks is None:
        raise BindError("a program of several ranks needs a group of them")
    return structs.Meeting(
        x=c_span(op.x if isinstance(op, Gather) else None, at),
        page=ranks.page_address,
        rank=ranks.rank,
        num_ranks=ranks.num_ranks,
        timeout_ms=round(1000 * ranks.timeout_s),
    )


# By operator: the member of the union, and the function that fills it.
_ENCODERS: Mapping[type[Any], tuple[str, Callable[[Any, Addresses], Any]]] = {
    ops.Embed: ("embed", _embed),
    ops.RmsNorm: ("norm", _norm),
    ops.LayerNorm: ("norm", _norm),
    ops.HeadNorm: ("head_norm", _head_norm),
    ops.Linear: ("linear", _linear),
    ops.Activation: ("pointwise", _pointwise),
    ops.GatedActivation: ("gated", _gated),
    ops.Rope: ("rope", _rope),
    ops.KvWrite: ("kv_write", _kv_write),
    ops.PagedAttention: ("attention", _attention),
    ops.Add: ("move", _move),
    ops.GatherRows: ("move", _move),
    ops.SoftCap: ("soft_cap", _soft_cap),
    ChooseExperts: ("route", expert_records.route),
    Experts: ("experts", expert_records.experts),
    GatedAdd: ("gated_add", _gated_add),
    ScaleByPosition: ("position_scale", _scale_by_position),
    HeadLinear: ("head_linear", _head_linear),
    ShortConv: ("short_conv", _short_conv),
    GatedDelta: ("gated_delta", _gated_delta),
    StateSpace: ("state_space", _state_space),
    ops.Scale: ("scale", _scale),
    ops.WholeAttention: ("whole_attention", _whole_attention),
    ops.MeanRows: ("move", _move),
    ops.ScaleByWeight: ("weight_scale", _scale_by_weight),
    GaussianTopK: ("top_k", _gaussian_top_k),
    MixStreams: ("streams", _streams),
    CorrectStreams: ("streams", _streams),
    MatchMagnitude: ("magnitude", _match_magnitude),
    ops.Copy: ("move", _move),
    RgLru: ("rg_lru", _rg_lru),
    AdapterLinear: ("adapter_linear", _adapter_linear),
    AdapterEmbed: ("adapter_embed", _adapter_embed),
    AdapterExperts: ("adapter_experts", _adapter_experts),
    MixExperts: ("mix_experts", expert_records.mix_experts),
    PlaceExperts: ("place_experts", expert_records.place_experts),
    SpreadExperts: ("spread_experts", expert_records.spread_experts),
    Gather: ("meeting", _meeting),
    Meet: ("meeting", _meeting),
}


def encode(op: ops.Operator, at: Addresses) -> structs.Operator:
    """Encodes a record for the library; its operator number is that of the generated header."""
    member, fill = _ENCODERS[type(op)]
    record = structs.Operator(kind=ops.OPERATORS.index(type(op)))
    setattr(record.arguments, member, fill(op, at))
    return record
