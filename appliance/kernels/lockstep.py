"""Replicas that run their steps together, as one of them sees it.

They share memory as the ranks of a machine do (kernels.ranks): a page of counters, then what `SpreadMemory` lays out.
A step of one is a round of all: each says how many rows it has, and one that has none runs it all the same. The line
of a replica in the page (kernels/cpu/lockstep.cpp has the same) counts its meetings, and its rounds; then it says which
round it has promised, whether it has loaded, and the rows of a round, in the place of the round's parity. Of a replica
with several tensor ranks each has a line and meets the others; what the first one's says is the replica's.
"""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from appliance.kernels.ranks import PAGE_BYTES, Ranks, SharedMemory, pages
from appliance.program.shard_layout import WHOLE, Shard
from appliance.program.slots import Extent
from appliance.program.spreading import SpreadMemory

_LINE_WORDS = 16
_ROUNDS, _PROMISED, _LOADED, _ROWS = 1, 2, 3, 4  # words of a line
_EXTENTS = (Extent.TOKENS, Extent.SAMPLED)
_LOOK_S = 0.05  # after which a replica that has loaded looks whether the others have
_ONE = (1).to_bytes(8, "little")


class RoundRows(NamedTuple):
    """Where a replica's rows begin among those of all, and how many these are, by extent."""

    first: Mapping[Extent, int]
    total: Mapping[Extent, int]


class Lockstep:
    """One replica's view of its group. Nothing here is for several threads but `wake` and what only reads."""

    def __init__(
        self,
        memory: SharedMemory,
        number: int,
        num_replicas: int,
        timeout_s: float,
        wakes: Sequence[int] = (),
        *,
        shard: Shard = WHOLE,
    ) -> None:
        """wakes: of each replica, the event descriptor at which it waits while it has nothing to do. shard: which of
        the replica's tensor ranks this is, as each replica has."""
        each = shard.num_ranks
        self.ranks = Ranks(
            memory, number * each + shard.rank, num_replicas * each, timeout_s, noun="replica", ranks_each=each
        )
        self.number, self.num_replicas, self.shard, self._wakes = number, num_replicas, shard, tuple(wakes)
        self._map = memory.map(0, pages(PAGE_BYTES))
        lines = np.frombuffer(self._map, np.uint32)[_LINE_WORDS:].reshape(-1, _LINE_WORDS)
        self._words = lines[: num_replicas * each : each]
        self._own = lines[self.ranks.rank]

    @property
    def wake_descriptor(self) -> int:
        """At which this replica is woken."""
        return self._wakes[self.number]

    @property
    def is_wanted(self) -> bool:
        """Says whether a replica has promised a round that this one has not begun; also this one, of a step that was
        refused before it began."""
        ahead = (self._words[:, (_ROUNDS, _PROMISED)] - self._own[_ROUNDS]).astype(np.int32)
        return bool((ahead > 0).any())

    def promise(self) -> None:
        """Says that a round begins, and wakes the others, which come."""
        self._own[_PROMISED] = self._own[_ROUNDS] + 1
        self.wake()

    def wake(self) -> None:
        """Has the others look at the page."""
        for number, descriptor in enumerate(self._wakes):
            if number != self.number:
                os.write(descriptor, _ONE)

    def wait_loaded(self) -> None:
        """Says that this replica has loaded, and waits until all have, as long as it takes. Raises RankError if one of
        them fails."""
        self._own[_LOADED] = 1
        while not self._words[:, _LOADED].all():
            self.ranks.check()
            time.sleep(_LOOK_S)

    def begin_round(self, rows: Mapping[Extent, int]) -> RoundRows:
        """Begins a round with so many rows of this replica, for sets that are not native. Raises RankError."""
        number = int(self._own[_ROUNDS]) + 1 & 0xFFFFFFFF
        place = _ROWS + number % 2 * len(_EXTENTS)
        self._own[place : place + len(_EXTENTS)] = [rows[extent] for extent in _EXTENTS]
        self._own[_ROUNDS] = number
        self.ranks.meet()
        said = self._words[:, place : place + len(_EXTENTS)].astype(int)
        first, total = said[: self.number].sum(axis=0), said.sum(axis=0)
        return RoundRows(*(dict(zip(_EXTENTS, each.tolist(), strict=True)) for each in (first, total)))

    def fail(self) -> None:
        """Has the waits of the others end, and names this replica to them."""
        self.ranks.fail(self.ranks.rank)
        self.wake()


class RowsOfReplicas:
    """The rows of all replicas in one round, for sets that are not native."""

    def __init__(self, lockstep: Lockstep, memory: SpreadMemory) -> None:
        self._lockstep, self._memory = lockstep, memory
        self._map = lockstep.ranks.memory.map(lockstep.ranks.arena_offset, pages(memory.size_bytes))
        self._round = RoundRows({}, {})

    @property
    def share_bytes(self) -> int:
        """What this replica has of the memory: the part for its own rows."""
        return self._memory.share_bytes(self._lockstep.num_replicas)

    def begin(self, rows: Mapping[Extent, int]) -> None:
        """Begins a round. Raises RankError if another replica fails, or does not come."""
        self._round = self._lockstep.begin_round(rows)

    def together(self, extent: Extent, x: np.ndarray, experts: np.ndarray, factors: np.ndarray) -> list[np.ndarray]:
        """Puts the own rows beside those of the others, and returns those of all. Raises like `begin`."""
        first, brought = self._round.first[extent], (x, experts, factors)
        places = zip(self._memory, brought, strict=False)
        found = [self._array(at, extent, own.shape[1], own.dtype) for at, own in places]
        for there, own in zip(found, brought, strict=True):
            if self._lockstep.shard.rank == 0:  # the others have the same rows
                there[first : first + len(own)] = own
        self._lockstep.ranks.meet()
        return found

    def apart(self, extent: Extent, outputs: np.ndarray, is_own: np.ndarray, num_rows: int) -> np.ndarray:
        """Gives the outputs [rows of all, k, D] of own experts to all; returns those of all experts for the own rows.
        is_own: [rows of all, k]. Raises like `begin`."""
        width, first = outputs.shape[1] * outputs.shape[2], self._round.first[extent]
        there = self._array(self._memory.outputs, extent, width, outputs.dtype).reshape(outputs.shape)
        there[is_own] = outputs[is_own]
        self._lockstep.ranks.meet()
        return there[first : first + num_rows].copy()

    def _array(self, at: int, extent: Extent, width: int, dtype: np.dtype[Any]) -> np.ndarray:
        rows = self._round.total[extent]
        return np.frombuffer(self._map, dtype, rows * width, at).reshape(rows, width)
