"""Places for adapters in a compiled decoder."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from appliance.layers.program import CompiledDecoder, WeightUse
from appliance.program.adapters import AdapterEmbed, AdapterExperts, AdapterLinear, places_of
from appliance.program.operators import Activation, Embed, Linear, Operator, StepProgram
from appliance.program.routing import Experts
from appliance.program.slots import whole


class Wanted(NamedTuple):
    """Which places a program gets. is_target: of which logical weights. whole: those for which a matrix of their own
    shape may be served, besides low-rank ones."""

    max_rank: int
    is_target: Callable[[str], bool]
    whole: frozenset[str] = frozenset()


def with_adapters(compiled: CompiledDecoder, wanted: Wanted) -> StepProgram:
    """Returns the program with a place for adapters after each Linear and embedding of which some logical weight is a
    target, and in each operator of experts.

    It reads the same weights, caches and states as the program without them, and gives the same for sequences that have
    no adapter. The activation of such a Linear becomes an operator of its own, because an adapter adds before it.
    """
    operators: list[Operator] = []
    for operator in compiled.program.operators:
        operators += _adapted(operator, compiled.weights, wanted)
    return replace(compiled.program, operators=tuple(operators))


def adapted_weights(program: StepProgram) -> dict[str, tuple[int, int]]:
    """Returns the shape of each logical weight that has a place for adapters."""
    return {part: shape for place in places_of(program.operators) for part, shape in place.shapes()}


def plain_positions(plain: StepProgram, adapted: StepProgram) -> list[int]:
    """Returns for each operator of the program with places the one of the plain program to whose work it belongs."""
    positions: list[int] = []
    at = -1
    for operator in adapted.operators:
        following = plain.operators[at + 1] if at + 1 < len(plain.operators) else None
        is_split = (
            isinstance(operator, Linear) and isinstance(following, Linear) and operator.weight == following.weight
        )
        is_changed = isinstance(operator, AdapterExperts) and isinstance(following, Experts)
        at += operator == following or is_split or is_changed
        positions.append(at)
    return positions


def _adapted(operator: Operator, uses: Mapping[str, WeightUse], wanted: Wanted) -> Iterator[Operator]:
    """Yields what takes the place of an operator."""
    match operator:
        case Linear() if any(map(wanted.is_target, _parts(operator, uses))):
            yield from _adapted_linear(operator, uses[operator.weight], wanted)
        case Embed() if operator.missing_row is None and wanted.is_target(operator.table):
            yield operator
            yield _embed(operator, uses[operator.table], wanted)
        case Experts() if any(map(wanted.is_target, _parts_of_experts(operator, uses))):
            yield _experts(operator, uses, wanted)
        case _:
            yield operator


def _parts(linear: Linear, uses: Mapping[str, WeightUse]) -> tuple[str, ...]:
    """Returns the logical weights of a Linear. A head that is the embedding is changed apart from it."""
    parts = uses[linear.weight].parts if linear.weight in uses else ()
    return ("head",) if parts == ("embed",) else parts


def _parts_of_experts(experts: Experts, uses: Mapping[str, WeightUse]) -> Iterator[str]:
    for name in experts.named(experts.matrices):
        yield from uses[name].parts


def _adapted_linear(linear: Linear, use: WeightUse, wanted: Wanted) -> Iterator[Operator]:
    parts, widths = _parts(linear, {linear.weight: use}), tuple(shape[0] for shape in use.shapes)
    takes_whole = len(parts) == 1 and parts[0] in wanted.whole
    place = AdapterLinear(linear.x, linear.out, parts, widths, wanted.max_rank, takes_whole)
    if linear.activation is None:
        yield from (linear, place)
        return
    slot = linear.out.slot
    assert linear.out == whole(slot), "a Linear with an activation fills its slot"
    yield from (replace(linear, activation=None), place, Activation(slot, slot, linear.activation))


def _embed(embed: Embed, use: WeightUse, wanted: Wanted) -> AdapterEmbed:
    (part,), ((num_tokens, _),) = use.parts, use.shapes
    takes_whole = part in wanted.whole
    return AdapterEmbed(embed.out, part, num_tokens, wanted.max_rank, embed.scale, takes_whole)


def _experts(experts: Experts, uses: Mapping[str, WeightUse], wanted: Wanted) -> AdapterExperts:
    up, down = uses[experts.up].parts, uses[experts.down].parts
    gate = () if experts.gate is None else uses[experts.gate].parts
    inner = tuple(part for pair in zip(gate, up, strict=True) for part in pair) if gate else up
    known = {field: getattr(experts, field) for field in Experts.__struct_fields__}
    return AdapterExperts(**known, inner_parts=inner, down_parts=down, max_rank=wanted.max_rank)
