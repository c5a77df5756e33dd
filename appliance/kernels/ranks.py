"""What the ranks of a group are to one another; and the memory that those of one machine share.

Layout of that memory: a page of counters for each stage, 64 bytes each so that ranks do not disturb each other
(kernels/cpu/ranks.h has the same); then the inputs of steps; then what each stage hands on, and what its kernel set
shares. The memory has no name in any file system: it goes to other processes as a file descriptor and is gone with the
last of them.
"""

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from appliance.kernels.errors import ExecutableError
from appliance.program.ranks import MAX_RANKS

_LINE = 64
PAGE_BYTES = _LINE * (MAX_RANKS + 1)  # the first line says whether a rank has failed
_MOST_BYTES = 1 << 42
_SPINS = 200  # looks at the counters before a rank gives its core away
_PAUSE_S = 0.00005
_NAMED = 2  # kernels/cpu/ranks.cpp: what says that number n failed is so much more than n; 1 names nobody


class RankError(ExecutableError):
    """A rank failed, or did not come within the deadline: the group cannot go on."""


class RankView(Protocol):
    """One rank's view of its group."""

    rank: int
    num_ranks: int
    timeout_s: float  # for which a rank waits for another, at most

    def meet(self) -> None:
        """Waits until no rank reads the arrays of earlier steps. Raises RankError if one does not come."""

    def fail(self) -> None:
        """Ends every wait of the group that can be ended from here."""

    @property
    def has_failed(self) -> bool:
        """Says whether a rank has failed: the group cannot go on."""


class SharedMemory:
    """Memory that several processes map. A child gets it by the number of its file descriptor."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Makes new memory, or takes over that of a descriptor. Raises OSError if the system refuses it."""
        if descriptor is not None:
            self.descriptor = descriptor
            return
        self.descriptor = os.memfd_create("ranks", 0)
        # It takes no memory before it is touched. Ranks that each made it longer could make it shorter for others.
        os.ftruncate(self.descriptor, _MOST_BYTES)

    def map(self, offset: int, size_bytes: int) -> mmap.mmap:
        """Maps a range of zeros, which starts at a page. Raises OSError if the system refuses it."""
        return mmap.mmap(self.descriptor, size_bytes, flags=mmap.MAP_SHARED, offset=offset)

    def close(self) -> None:
        os.close(self.descriptor)


def pages(size_bytes: int) -> int:
    """Rounds up to whole pages."""
    return -(-max(size_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE


class PlaceInMemory(NamedTuple):
    """Where a group finds its own in memory that several share: which of the pages of counters at the start, and where
    its kernel set's part begins."""

    page: int = 0
    num_pages: int = 1
    arena_offset: int = pages(PAGE_BYTES)


class Ranks:
    """One rank's view of a group that shares memory."""

    def __init__(
        self,
        memory: SharedMemory,
        rank: int,
        num_ranks: int,
        timeout_s: float,
        place: "PlaceInMemory | None" = None,
        noun: str = "rank",
        ranks_each: int = 1,
    ) -> None:
        """noun: what errors call one of them; or so many of them, one after the other, under one number."""
        place = place or PlaceInMemory()
        self._noun, self._ranks_each = noun, ranks_each
        self.memory, self.rank, self.num_ranks, self.timeout_s = memory, rank, num_ranks, timeout_s
        self.arena_offset = place.arena_offset
        size = pages(PAGE_BYTES)
        self._map = memory.map(0, place.num_pages * size)
        self.page_address = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + place.page * size
        lines = np.frombuffer(self._map, np.uint32).reshape(place.num_pages, -1, _LINE // 4)
        self._all_failed, self._failed = lines[:, 0, 0], lines[place.page, 0]
        self._counters = lines[place.page, 1 : num_ranks + 1, 0]

    def meet(self) -> None:
        """Waits until every rank is here as often as this one. Raises RankError if one does not come."""
        self._counters[self.rank] += 1
        own = self._counters[self.rank]

        def late() -> list[int]:
            return np.flatnonzero((self._counters - own).astype(np.int32) < 0).tolist()

        self.wait(lambda: not late(), late)

    def wait(self, is_there: Callable[[], bool], late: Callable[[], Iterable[int]]) -> None:
        """Waits until what other ranks do is there. late: the ranks to blame if it does not come in time. Raises
        RankError then, and if a rank has failed."""
        deadline, looks = time.monotonic() + self.timeout_s, 0
        while not is_there():
            self.check()
            looks += 1
            if looks > _SPINS:
                time.sleep(_PAUSE_S)
            if time.monotonic() > deadline:
                blamed = list(late())
                self.fail(blamed[0] if blamed else None)
                named = dict.fromkeys(str(each // self._ranks_each) for each in blamed)
                raise RankError(f"{self._noun} {', '.join(named)} did not come within {self.timeout_s:g} s")

    def fail(self, blamed: int | None = None) -> None:
        """Ends every wait of every group in the memory. blamed: the one that others name; the first that is named
        stays."""
        if not self.has_failed:
            self._all_failed[:] = 1 if blamed is None else _NAMED + blamed

    @property
    def reason(self) -> str:
        """Why the group cannot go on, once it cannot."""
        said = int(self._failed[0])
        if said < _NAMED:
            return f"a {self._noun} failed"
        return f"{self._noun} {(said - _NAMED) // self._ranks_each} is gone"

    @property
    def has_failed(self) -> bool:
        """Says whether a rank has failed: the group cannot go on."""
        return bool(self._failed[0])

    def check(self) -> None:
        """Raises RankError if a rank has failed."""
        if self.has_failed:
            raise RankError(self.reason)


class Exchange:
    """Gathers columns through shared memory, for kernel sets whose activations are not in it."""

    def __init__(self, ranks: Ranks, max_rows: int, max_width: int) -> None:
        self._ranks = ranks
        self._map = ranks.memory.map(ranks.arena_offset, pages(4 * max_rows * max_width))

    def gather(self, columns: np.ndarray, starts: Sequence[int]) -> None:
        """Fills f32 columns [rows, width] that other ranks have computed: rank r those from starts[r] on."""
        there = self._like(columns)
        begin, end = starts[self._ranks.rank], starts[self._ranks.rank + 1]
        there[:, begin:end] = columns[:, begin:end]
        self._ranks.meet()
        columns[:] = there
        self._ranks.meet()  # before the next columns are written

    def gather_experts(self, outputs: np.ndarray, starts: Sequence[int], experts: np.ndarray) -> None:
        """Fills f32 outputs of experts [rows, k * D]: rank r has those of the experts from starts[r] on. experts: int32
        [rows, k]."""
        there, rank = self._like(outputs), self._ranks.rank
        own = (starts[rank] <= experts) & (experts < starts[rank + 1])
        np.copyto(there, outputs, where=np.repeat(own, outputs.shape[1] // experts.shape[1], axis=1))
        self._ranks.meet()
        outputs[:] = there
        self._ranks.meet()

    def gather_rows(self, columns: np.ndarray, starts: Sequence[int], tokens: np.ndarray) -> None:
        """Fills f32 rows [T, width] that other ranks have computed: rank r those whose token is one of starts[r] to
        starts[r + 1] - 1."""
        there, rank = self._like(columns), self._ranks.rank
        own = (starts[rank] <= tokens) & (tokens < starts[rank + 1])
        there[own] = columns[own]
        self._ranks.meet()
        columns[:] = there
        self._ranks.meet()

    def _like(self, columns: np.ndarray) -> np.ndarray[Any, np.dtype[np.float32]]:
        rows, width = columns.shape
        return np.frombuffer(self._map, np.float32, rows * width).reshape(rows, width)
