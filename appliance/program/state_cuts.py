"""How recurrent states are divided among ranks: a rank has the heads, or the columns, of its own share of the state."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from appliance.program.head_cuts import COLUMN_UNIT, Cut, UncutError, even_cut, kv_heads_cut, query_heads_cut, scaled
from appliance.program.slots import Span
from appliance.program.states import GatedDelta, StateSpace

Headed = GatedDelta | StateSpace
Rows = tuple[tuple[int, int], ...]


class OwnVectors(NamedTuple):
    """The numbers of vectors that a rank has, by field, and how many there are of all ranks."""

    rows: Mapping[str, Rows]
    sizes: Mapping[str, int]


def state_cuts(op: Headed, count: int) -> dict[str, tuple[Span, Cut]]:
    """Returns the spans, by field, that an operator with a state divides by heads; none if its heads cannot be shared
    by so many ranks, each of which then computes all."""
    try:
        heads, groups = _heads(op, count)
    except UncutError:
        return {}
    by_group, num_groups = ("q", "k"), op.num_key_heads if isinstance(op, GatedDelta) else op.num_groups
    by_head: Sequence[str] = ("v", "decay", "beta", "out")
    if isinstance(op, StateSpace):
        by_group, by_head = ("b", "c"), ("x", "dt", "out")
    found: dict[str, tuple[Span, Cut]] = {}
    for names, cut, num in ((by_group, groups, num_groups), (by_head, heads, _num_heads(op))):
        for name in names:
            span: Span = getattr(op, name)
            found[name] = (span, scaled(cut, span.width // num))
    return found


def own_state(op: Headed, own: Mapping[str, Span], rank: int, count: int) -> tuple[Headed, OwnVectors]:
    """Returns the operator of one rank, still with the vectors of all, and which of their numbers are its own. own: the
    rank's spans, by field, without the output."""
    heads, groups = _heads(op, count)
    (first, last), (first_group, last_group) = heads[rank], groups[rank]
    if isinstance(op, GatedDelta):
        made: Headed = replace(op, **own, num_key_heads=last_group - first_group, num_value_heads=last - first)
    else:
        made = replace(op, **own, num_heads=last - first, num_groups=last_group - first_group)
    sizes = {name: _vector_size(op, name) for name in op.vectors if getattr(op, name) is not None}
    each = {name: size // _num_heads(op) for name, size in sizes.items()}
    return made, OwnVectors({name: ((first * n, last * n),) for name, n in each.items()}, sizes)


def _num_heads(op: Headed) -> int:
    return op.num_value_heads if isinstance(op, GatedDelta) else op.num_heads


def _heads(op: Headed, count: int) -> tuple[Cut, Cut]:
    """Returns the heads of each rank, and the groups of heads that read the same keys, or the same b and c."""
    if isinstance(op, StateSpace) and op.by_state and op.num_groups == 1:
        return even_cut(op.num_heads, count, COLUMN_UNIT), ((0, 1),) * count  # heads are single channels
    num_groups = op.num_key_heads if isinstance(op, GatedDelta) else op.num_groups
    return query_heads_cut(_num_heads(op), num_groups, count), kv_heads_cut(num_groups, count)


def _vector_size(op: Headed, name: str) -> int:
    if isinstance(op, GatedDelta):
        return op.decay.width if name == "dt_bias" else op.num_value_heads
    return op.num_heads * (op.b.width // op.num_groups if op.by_state and name == "a_log" else 1)
