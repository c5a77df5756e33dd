"""Encodes the operators of mixtures of experts as the C structs of the ABI."""

from appliance.kernels.cpu import operator_structs as structs
from appliance.kernels.cpu.addresses import Addresses
from appliance.kernels.cpu.spans import c_span
from appliance.kernels.errors import BindError
from appliance.program.routing import ChooseExperts, Experts, MixExperts, PlaceExperts, SpreadExperts


def route(op: ChooseExperts, at: Addresses) -> structs.Route:
    return structs.Route(
        logits=c_span(op.logits, at),
        experts=c_span(op.experts, at),
        factors=c_span(op.factors, at),
        correction=at.vector(op.correction, op.logits.width),
        expert_scale=at.vector(op.expert_scale, op.logits.width),
        scoring=structs.SCORINGS[op.scoring],
        renormalize=op.renormalize,
        num_groups=op.num_groups,
        num_chosen_groups=op.num_chosen_groups,
        adds_two=op.group_scoring == "top2",
        scale=op.scale,
        jitter=op.jitter,
    )


def experts(op: Experts, at: Addresses, *, is_apart: bool | None = None) -> structs.Experts:
    """is_apart: whether `out` is for the output of each choice; else it is if the operator has some of the experts."""
    joined = 2 if op.is_gated and op.gate is None else 1
    rows = op.num_own * op.width
    return structs.Experts(
        x=c_span(op.x, at),
        experts=c_span(op.experts, at),
        factors=c_span(op.factors, at),
        out=c_span(op.out, at),
        gate=None if op.gate is None else at.matrix(op.gate),
        up=at.matrix(op.up),
        down=at.matrix(op.down),
        gate_bias=at.vector(op.gate_bias, rows),
        up_bias=at.vector(op.up_bias, joined * rows),
        down_bias=at.vector(op.down_bias, op.num_own * op.out_width),
        num_experts=op.num_experts,
        width=op.width,
        activation=structs.ACTIVATIONS[op.kind],
        is_gated=op.is_gated,
        weigh_input=op.weigh_input,
        limit=op.limit or 0.0,
        alpha=op.alpha,
        up_offset=op.up_offset,
        first_own=0 if op.own is None else op.own[0],
        num_own=op.num_own,
        is_apart=op.own is not None if is_apart is None else is_apart,
    )


def spread_experts(op: SpreadExperts, at: Addresses) -> structs.SpreadExperts:
    place = at.spread
    if place is None:
        raise BindError("a program whose experts several replicas have needs a group of them")
    ranks, starts = place.lockstep.ranks, place.at
    memory = {"x": starts.x, "chosen": starts.experts, "factors": starts.factors, "outputs": starts.outputs}
    return structs.SpreadExperts(
        experts=experts(op, at, is_apart=False),
        page=ranks.page_address,
        **{name: place.memory.address + start for name, start in memory.items()},
        rank=ranks.rank,
        num_ranks=ranks.num_ranks,
        ranks_each=place.lockstep.shard.num_ranks,
        timeout_ms=round(1000 * ranks.timeout_s),
        max_rows=place.rows[op.x.extent],
    )


def mix_experts(op: MixExperts, at: Addresses) -> structs.MixExperts:
    return structs.MixExperts(c_span(op.x, at), c_span(op.factors, at), c_span(op.out, at), op.weigh_input)


def place_experts(op: PlaceExperts, at: Addresses) -> structs.PlaceExperts:
    table = at.tables[op.mixture]
    arrays = (each.ctypes.data for each in (table.starts, table.places, table.loads))
    return structs.PlaceExperts(c_span(op.experts, at), c_span(op.out, at), *arrays, op.num_experts, len(table.places))
