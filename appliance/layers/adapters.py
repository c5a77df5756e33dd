"""Places for adapters in a compiled decoder."""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from appliance.layers.program import CompiledDecoder, WeightUse
from appliance.program.adapters import AdapterLinear
from appliance.program.operators import Activation, Linear, Operator, StepProgram
from appliance.program.slots import whole


def with_adapters(compiled: CompiledDecoder, max_rank: int, is_target: Callable[[str], bool]) -> StepProgram:
    """Returns the program with a place for adapters after each Linear of which some logical weight is a target.

    It reads the same weights, caches and states as the program without them, and gives the same for sequences that have
    no adapter. The activation of such a Linear becomes an operator of its own, because an adapter adds before it.
    """
    operators: list[Operator] = []
    for operator in compiled.program.operators:
        use = compiled.weights.get(operator.weight) if isinstance(operator, Linear) else None
        if use is None or not any(map(is_target, use.parts)):
            operators.append(operator)
            continue
        assert isinstance(operator, Linear), "only a Linear has a use"
        operators += _adapted(operator, use, max_rank)
    return replace(compiled.program, operators=tuple(operators))


def adapted_weights(program: StepProgram) -> dict[str, tuple[int, int]]:
    """Returns the shape of each logical weight that has a place for adapters."""
    places = (operator for operator in program.operators if isinstance(operator, AdapterLinear))
    return {part: (width, place.x.width) for place in places for part, width in place.shapes()}


def plain_positions(plain: StepProgram, adapted: StepProgram) -> list[int]:
    """Returns for each operator of the program with places the one of the plain program to whose work it belongs."""
    positions: list[int] = []
    at = -1
    for operator in adapted.operators:
        following = plain.operators[at + 1] if at + 1 < len(plain.operators) else None
        is_split = (
            isinstance(operator, Linear) and isinstance(following, Linear) and operator.weight == following.weight
        )
        at += operator == following or is_split
        positions.append(at)
    return positions


def _adapted(linear: Linear, use: WeightUse, max_rank: int) -> Iterator[Operator]:
    widths = tuple(shape[0] for shape in use.shapes)
    place = AdapterLinear(linear.x, linear.out, use.parts, widths, max_rank)
    if linear.activation is None:
        yield from (linear, place)
        return
    slot = linear.out.slot
    assert linear.out == whole(slot), "a Linear with an activation fills its slot"
    yield from (replace(linear, activation=None), place, Activation(slot, slot, linear.activation))
