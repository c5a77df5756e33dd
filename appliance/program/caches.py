"""The caches that a program keeps between steps, in the order in which its blocks declare them, and which share tables.

Caches of one reach form groups. Each group has block tables of its own, over one pool of blocks; a block has `lanes`,
one for each cache of the group that holds it. So a windowed group gives back the blocks that its window has left, while
a group that sees everything keeps its own. A lane is as wide as the widest cache that any group has in it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import msgspec

KV_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}  # of a number, by the cache's type
MOST_GROUPS = 8  # of a model that could have fewer: each costs every step the work of its block tables


def kv_scale_bytes(dtype: str) -> int:
    """Returns the bytes that a token's key or value of one head has beside its numbers: of 8 bits, an f32 scale."""
    return 4 if KV_BYTES[dtype] == 1 else 0


class KvShape(msgspec.Struct, frozen=True):
    """The shape of one attention block's cache: per cached token, num_kv_heads keys of key_dim and as many values of
    value_dim.

    window: only this many of the latest tokens are read; None for all. values_in_keys: the values are the first columns
    of the keys, and are not stored again; there is one KV head then.
    """

    num_kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    values_in_keys: bool = False

    @property
    def stored_dims(self) -> tuple[int, ...]:
        """The widths that a head stores for a token: of its key, and of its value unless that is a part of it."""
        return (self.key_dim,) if self.values_in_keys else (self.key_dim, self.value_dim)


class KvGroup(msgspec.Struct, frozen=True):
    """Caches of one reach that share block tables: caches[j] is in lane j of the group's blocks."""

    window: int | None
    caches: tuple[int, ...]


class KvLayout(msgspec.Struct, frozen=True):
    """The groups of a program, and how many lanes a block has. Every cache is in exactly one group."""

    groups: tuple[KvGroup, ...]
    num_lanes: int

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each group; None for full attention."""
        return tuple(group.window for group in self.groups)

    def lanes(self) -> tuple[tuple[int, ...], ...]:
        """Returns the caches in each lane, one of each group that has one there."""
        return tuple(
            tuple(group.caches[lane] for group in self.groups if lane < len(group.caches))
            for lane in range(self.num_lanes)
        )

    @classmethod
    def of(cls, caches: Sequence[KvShape], stages: Sequence[int] = ()) -> Self:
        """Forms groups, in the order of their first caches. stages: by cache, the pipeline stage that has it; then each
        group has caches of all stages, as a stage has memory for every block.

        Caches that all have one reach are one group, with a lane each. Where reaches differ, the caches of each are cut
        into groups of as many as a block has lanes, of which the last group may leave some empty. The number of lanes
        is the one that leaves the fewest empty in the groups that reach furthest, then in all, of those that make
        MOST_GROUPS groups at most; where that is no choice, the largest.
        """
        kinds: dict[int | None, list[int]] = {}
        for number, shape in enumerate(caches):
            kinds.setdefault(shape.window, []).append(number)
        if stages:
            kinds = {window: _in_turn(numbers, stages) for window, numbers in kinds.items()}
        options = {lanes: _groups(kinds, lanes) for lanes in _allowed({w: len(each) for w, each in kinds.items()})}
        num_lanes = min(options, key=lambda lanes: _cost(options[lanes], lanes, stages), default=0)
        groups = sorted(options.get(num_lanes, []), key=lambda group: min(group.caches))
        return cls(tuple(groups), num_lanes)


def _allowed(counts: Mapping[int | None, int]) -> Iterator[int]:
    """Yields how many lanes a block may have, for so many caches of each window."""
    allowed = max(MOST_GROUPS, len(counts))
    for lanes in range(1, max(counts.values(), default=0) + 1):
        if sum(-(-count // lanes) for count in counts.values()) <= allowed:
            yield lanes


def _groups(kinds: Mapping[int | None, Sequence[int]], num_lanes: int) -> list[KvGroup]:
    return [
        KvGroup(window, tuple(numbers[first : first + num_lanes]))
        for window, numbers in kinds.items()
        for first in range(0, len(numbers), num_lanes)
    ]


def _cost(groups: Sequence[KvGroup], num_lanes: int, stages: Sequence[int]) -> tuple[int, ...]:
    """Returns what is to be small: with stages, the lanes that one of them has in blocks of all groups; the lanes that
    are empty in the groups that reach furthest, then in all."""
    windows = {group.window for group in groups}
    furthest = None if None in windows else max(filter(None, windows), default=0)
    empty = [(group.window, num_lanes - len(group.caches)) for group in groups]
    of_furthest = sum(lanes for window, lanes in empty if window == furthest)
    counts = [Counter(stages[cache] for cache in group.caches) for group in groups] if stages else []
    of_stage = len(groups) * max((lanes for each in counts for lanes in each.values()), default=0)
    return of_stage, of_furthest, sum(lanes for _, lanes in empty), -num_lanes


def _in_turn(numbers: Sequence[int], stages: Sequence[int]) -> list[int]:
    """Orders caches so that those of different stages follow one another."""
    seen: Counter[int] = Counter()
    place: dict[int, tuple[int, int]] = {}
    for number in numbers:
        place[number] = (seen[stages[number]], stages[number])
        seen[stages[number]] += 1
    return sorted(numbers, key=place.__getitem__)
