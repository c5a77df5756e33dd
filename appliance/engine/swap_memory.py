"""The host memory in which blocks and states of preempted sequences wait, each place with a checksum."""

import mmap
import time
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable
from zlib import crc32

import numpy as np

from appliance.engine.messages import ErrorKind
from appliance.engine.step import BlockMove, Moved, RowError
from appliance.kernels.interface import BlockMover, Executable, Moves


class Swap(Protocol):
    """What moves blocks and states between caches and host memory."""

    @property
    def size_bytes(self) -> int: ...

    def move(self, stores: Iterable[BlockMove], loads: Iterable[BlockMove]) -> Moved:
        """Stores, then loads. Of a row of which a place has changed since it was stored, nothing is loaded."""

    def release(self) -> None:
        """Gives the memory back while nothing is in it; it is taken again when something is stored."""


@runtime_checkable
class Swaps(Protocol):
    """An executable that has host memory of its own for what it keeps."""

    def swap(self, num_places: int, num_state_places: int) -> Swap:
        """Returns it, of so many places."""


def unloaded_rows(moved: Moved) -> dict[int, RowError]:
    """Returns the rows of which nothing was loaded, and why."""
    why = "its blocks came back from host memory other than they were stored"
    return dict.fromkeys(moved.unloaded, RowError(ErrorKind.INTERNAL, why))


def swap_of(executable: Executable, num_places: int, num_state_places: int) -> Swap:
    """Returns host memory for what an executable keeps, of so many places, of which a state takes so many."""
    if isinstance(executable, Swaps):
        return executable.swap(num_places, num_state_places)
    return SwapMemory(executable, num_places, num_state_places)


class SwapMemory:
    """Memory in places of a block each, or of a state in a model without blocks; larger states lie at several places.
    It is zeroed, and not resident before it is written.

    A checksum is a CRC-32, which the standard library computes faster than a disk reads. It finds what a fault of the
    memory or of a copy changes, and need not withstand anybody who means to change a place.
    """

    def __init__(self, executable: Executable, num_places: int, num_state_places: int) -> None:
        """num_state_places: of which a state takes so many. One of several ranks may have smaller blocks than the one
        for which that was planned: its places are large enough for its states all the same."""
        assert isinstance(executable, Moves), "the plan swaps only where the kernel set can move blocks"
        self._executable: Moves = executable
        mover = executable.mover()
        place_bytes = max(mover.block_bytes, -(-mover.state_bytes // max(1, num_state_places)))
        self._memory = mmap.mmap(-1, max(1, num_places * place_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        size = num_places * place_bytes
        self._places = np.frombuffer(self._memory, np.uint8, size).reshape(num_places, place_bytes)
        self._checksums = [0] * num_places

    @property
    def size_bytes(self) -> int:
        return self._places.nbytes

    def release(self) -> None:
        self._memory.madvise(mmap.MADV_DONTNEED)

    def move(self, stores: Iterable[BlockMove], loads: Iterable[BlockMove]) -> Moved:
        mover = self._executable.mover()  # anew: a set that slept has other memory
        started = time.perf_counter()
        num_stored, num_loaded, unloaded = 0, 0, set[int]()
        for move in stores:
            self._store(move, mover)
            num_stored += move.num_places
        stored = time.perf_counter()
        for move in loads:
            num_loaded += move.num_places
            if not self._load(move, mover):
                unloaded.add(move.row)
        ended = time.perf_counter()
        return Moved(num_stored, stored - started, num_loaded, ended - stored, frozenset(unloaded))

    def _store(self, move: BlockMove, mover: BlockMover) -> None:
        mover.store_blocks(move.blocks, self._places, move.places)
        if move.state is not None and mover.state_bytes:  # another stage may have all states
            self._put_state(mover.stored_state(move.state), move.state_places)
        for place in (*move.places, *move.state_places):
            self._checksums[place] = crc32(self._places[place])

    def _load(self, move: BlockMove, mover: BlockMover) -> bool:
        if any(crc32(self._places[place]) != self._checksums[place] for place in (*move.places, *move.state_places)):
            return False
        mover.load_blocks(move.blocks, self._places, move.places)
        if move.state is not None and mover.state_bytes:
            mover.load_state(move.state, self._places[list(move.state_places)].reshape(-1))
        return True

    def _put_state(self, state: np.ndarray, places: Sequence[int]) -> None:
        """Cuts the bytes of a state into places; the last is only filled in part."""
        size = self._places.shape[1]
        for number, place in enumerate(places):
            part = state[number * size : (number + 1) * size]
            self._places[place, : len(part)] = part
