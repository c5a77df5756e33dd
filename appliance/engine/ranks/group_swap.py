"""The host memory in which the ranks of a group keep what moves out of their caches."""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from appliance.engine.ranks.messages import Move, ToRank
from appliance.engine.step import BlockMove, Moved
from appliance.engine.swap_memory import Swap


class Movers(Protocol):
    """The other ranks."""

    def send(self, message: ToRank) -> None: ...

    def wait_moved(self) -> frozenset[int]:
        """Waits until all have moved what they were told to; returns the rows that one of them did not load. Raises
        RankFailedError."""


class GroupSwap:
    """The host memory of all ranks: each keeps its own part of every block and state, at the same places."""

    def __init__(self, own: Swap, others: Movers) -> None:
        self._own, self._others = own, others

    @property
    def size_bytes(self) -> int:
        """What the leader has; the others have as much, but for an uneven share."""
        return self._own.size_bytes

    def release(self) -> None:
        """Gives back what the leader has; the others do so when they sleep."""
        self._own.release()

    def move(self, stores: Iterable[BlockMove], loads: Iterable[BlockMove]) -> Moved:
        """Moves on all ranks at once; each of a later stage when it has run the steps that were told before. A row is
        unloaded if it is on one of them. Raises RankFailedError."""
        stores, loads = list(stores), list(loads)
        self._others.send(Move(stores, loads))
        moved = self._own.move(stores, loads)
        return msgspec.structs.replace(moved, unloaded=moved.unloaded | self._others.wait_moved())
