"""The caches that a program keeps between steps, in the order in which its blocks declare them, and which share tables.

Caches of one reach form groups. Each group has block tables of its own, over one pool of blocks; a block has `lanes`,
one for each cache of the group that holds it. So a windowed group gives back the blocks that its window has left, while
a group that sees everything keeps its own. A lane is as wide as the widest cache that any group has in it.
"""

from collections.abc import Mapping, Sequence
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
    def of(cls, caches: Sequence[KvShape]) -> Self:
        """Forms groups, in the order of their first caches.

        Caches that all have one reach are one group, with a lane each. Where reaches differ, the caches of each are cut
        into groups of as many as a block has lanes, of which the last group may leave some empty. The number of lanes
        is the one that leaves the fewest empty in the groups that reach furthest, then in all, of those that make
        MOST_GROUPS groups at most; where that is no choice, the largest.
        """
        kinds: dict[int | None, list[int]] = {}
        for number, shape in enumerate(caches):
            kinds.setdefault(shape.window, []).append(number)
        num_lanes = _num_lanes({window: len(numbers) for window, numbers in kinds.items()})
        groups = [
            KvGroup(window, tuple(numbers[first : first + num_lanes]))
            for window, numbers in kinds.items()
            for first in range(0, len(numbers), num_lanes)
        ]
        return cls(tuple(sorted(groups, key=lambda group: group.caches)), num_lanes)


def _num_lanes(counts: Mapping[int | None, int]) -> int:
    """Returns how many lanes a block has, for so many caches of each window."""
    furthest = None if None in counts else max(filter(None, counts), default=0)

    def cost(lanes: int) -> tuple[int, int, int]:
        empty = {window: -count % lanes for window, count in counts.items()}
        return empty[furthest], sum(empty.values()), -lanes

    most = max(counts.values(), default=0)
    allowed = max(MOST_GROUPS, len(counts))
    few = [lanes for lanes in range(1, most + 1) if sum(-(-count // lanes) for count in counts.values()) <= allowed]
    return min(few, key=cost, default=0)
