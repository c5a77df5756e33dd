"""Spreads copies of experts over ranks by their load.

The algorithm is the global policy of DeepSeek's expert-parallel load balancer, as described at
https://github.com/deepseek-ai/EPLB and in the DeepSeek-V3 report (arXiv 2412.19437, section 3.4): copies go one by one
to the expert with the largest load a copy, and then, the largest load first, each to the rank with the least load that
has room. Two copies of an expert are never of one rank, where the second would have no use. At last, ranks and places
are numbered so that as many experts as possible stay where they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


def balanced(
    loads: Sequence[float], num_places: int, num_ranks: int, former: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Returns the expert of each place; each rank has as many places, in order. loads: what each expert has to do.
    former: the expert of each place until now; None: there are none.

    Of equal loads the lower number comes first, so that equal arguments give equal places on every machine. Raises
    ValueError if the places are fewer than the experts, do not divide by the ranks, or are more than each rank can fill
    without a second copy.
    """
    room = num_places // num_ranks
    if num_places % num_ranks or not len(loads) <= num_places or room > len(loads):
        raise ValueError(f"{num_places} places for {len(loads)} experts and {num_ranks} ranks")
    ranks = _packed(loads, _copies(loads, num_places, num_ranks), num_ranks, room)
    if former is None:
        return tuple(expert for rank in ranks for expert in sorted(rank.experts))
    return _kept(ranks, [former[start : start + room] for start in range(0, num_places, room)])


def balancedness(loads: Sequence[float], places: Sequence[int], num_ranks: int) -> float:
    """Returns the mean load of a rank divided by the largest one, where the copies of an expert share its load: 1 if
    all have the same, and 1 without any load."""
    of_ranks = [sum(each) for each in loads_of_places(loads, places, num_ranks)]
    return 1.0 if not any(of_ranks) else sum(of_ranks) / (len(of_ranks) * max(of_ranks))


def loads_of_places(loads: Sequence[float], places: Sequence[int], num_ranks: int) -> list[list[float]]:
    """Returns the loads of each rank's places."""
    copies = [0] * len(loads)
    for expert in places:
        copies[expert] += 1
    room = len(places) // num_ranks
    shares = [loads[expert] / copies[expert] for expert in places]
    return [shares[start : start + room] for start in range(0, len(places), room)]


@dataclass(slots=True)
class _Rank:
    load: float = 0.0
    experts: set[int] = field(default_factory=set)


def _copies(loads: Sequence[float], num_places: int, most: int) -> list[int]:
    """Returns how many copies each expert has, at most one in each rank."""
    copies = [1] * len(loads)
    for _ in range(num_places - len(loads)):
        free = (expert for expert in range(len(loads)) if copies[expert] < most)
        copies[max(free, key=lambda expert: (loads[expert] / copies[expert], -copies[expert], -expert))] += 1
    return copies


def _packed(loads: Sequence[float], copies: Sequence[int], num_ranks: int, room: int) -> list[_Rank]:
    ranks = [_Rank() for _ in range(num_ranks)]
    shares = [load / count for load, count in zip(loads, copies, strict=True)]
    for expert in sorted(range(len(loads)), key=lambda each: (-shares[each], each)):
        for _ in range(copies[expert]):
            with_room = [rank for rank in ranks if len(rank.experts) < room]
            open_to = [rank for rank in with_room if expert not in rank.experts]
            least = min(open_to or with_room, key=lambda rank: rank.load)
            if not open_to:
                least = _traded(least, ranks, expert, shares)
            least.experts.add(expert)
            least.load += shares[expert]
    return ranks


def _traded(with_room: _Rank, ranks: Sequence[_Rank], expert: int, shares: Sequence[float]) -> _Rank:
    """Makes room in a rank without this expert: one of its own goes where there is room, and is not there yet. A full
    rank has such a one, as it has more experts than one with room."""
    full = next(rank for rank in ranks if expert not in rank.experts)
    moved = min(full.experts - with_room.experts, key=lambda each: (shares[each], each))
    full.experts.remove(moved)
    full.load -= shares[moved]
    with_room.experts.add(moved)
    with_room.load += shares[moved]
    return full


def _kept(ranks: Sequence[_Rank], former: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Gives ranks the sets of experts that have most in common with their former ones, and these their places."""
    numbers = range(len(ranks))
    alike = [(-len(ranks[new].experts.intersection(former[old])), old, new) for old in numbers for new in numbers]
    taken: dict[int, int] = {}  # the new set of each rank
    for _, old, new in sorted(alike):
        if old not in taken and new not in taken.values():
            taken[old] = new
    places: list[int] = []
    for old in numbers:
        wanted = ranks[taken[old]].experts
        added = iter(sorted(wanted.difference(former[old])))
        staying = set(wanted)
        for expert in former[old]:
            places.append(expert if expert in staying else next(added))
            staying.discard(expert)
    return tuple(places)
