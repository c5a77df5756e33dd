"""What a stage hands on to the next, and the last one to the leader: rows in memory that both map.

A place is written again only when the step that used it has ended in every stage, so nobody waits to write.
"""

import mmap
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from appliance.kernels.interface import StepInputs
from appliance.kernels.ranks import Ranks, SharedMemory, pages


class Handing(Protocol):
    """What the rank of a stage has of the others, for steps by their numbers."""

    def given(self, number: int, inputs: StepInputs) -> np.ndarray | None:
        """Returns what the stage before handed on, f32 [T, W]; None in the first stage. Raises RankError if it does not
        come."""

    def hand_on(self, number: int, rows: np.ndarray) -> None:
        """Gives the next stage its rows, f32 [T, W]."""

    def hand_back(self, number: int, logits: np.ndarray, kept: np.ndarray | None) -> None:
        """Gives the leader the logits, f32 [R, V], and the rows that the model keeps for a drafting head."""


_LINE = 64
_NUMBER, _ROWS, _WIDTH = range(3)  # of a place's line, as uint32; the number of the step is written last


class Mail:
    """Rows f32 from one rank to others, for a few steps at once, each in a place of its own."""

    def __init__(self, memory: SharedMemory, offset: int, places: int, most_rows: int, ranks: Ranks) -> None:
        """offset: where its pages begin. ranks: of the one who waits, whose wait ends when any rank fails."""
        self._memory, self._offset, self._ranks = memory, offset, ranks
        self._places, self._most_rows = places, most_rows
        self._lines_map = memory.map(offset, pages(places * _LINE))
        self._lines = np.frombuffer(self._lines_map, np.uint32)[: places * _LINE // 4].reshape(places, -1)
        self._rows_map: mmap.mmap | None = None

    def put(self, number: int, rows: np.ndarray) -> None:
        """Hands the rows [n, W] of a step on."""
        line = self._lines[number % self._places]
        self._place(number, *rows.shape)[:] = rows
        line[_ROWS], line[_WIDTH] = rows.shape
        line[_NUMBER] = number

    def has(self, number: int) -> bool:
        """Says whether the rows of a step are there."""
        return bool(self._lines[number % self._places][_NUMBER] == number)

    def take(self, number: int, late: Callable[[], int]) -> np.ndarray:
        """Waits for the rows of a step, f32 [n, W], which stay until its place is used again. Raises RankError if they
        do not come. late: tells which rank is to blame then."""
        self._ranks.wait(lambda: self.has(number), lambda: [late()])
        line = self._lines[number % self._places]
        return self._place(number, int(line[_ROWS]), int(line[_WIDTH]))

    def _place(self, number: int, rows: int, width: int) -> np.ndarray:
        size = pages(4 * self._most_rows * width)
        if self._rows_map is None:
            self._rows_map = self._memory.map(self._offset + pages(self._places * _LINE), self._places * size)
        at = number % self._places * size
        return np.frombuffer(self._rows_map, np.float32, rows * width, at).reshape(rows, width)


class StageMail(NamedTuple):
    """The mail of a group, as one stage of `tensor` ranks sees it. behind: by stage, from it to the next. logits and
    kept: from the last stage to the leader; the latter only if the model keeps rows."""

    stage: int
    tensor: int
    behind: tuple[Mail, ...]
    logits: Mail
    kept: Mail | None

    def given(self, number: int, inputs: StepInputs) -> np.ndarray | None:
        if not self.stage:
            return None
        return self.behind[self.stage - 1].take(number, lambda: self._late(number))

    def hand_on(self, number: int, rows: np.ndarray) -> None:
        self.behind[self.stage].put(number, rows)

    def hand_back(self, number: int, logits: np.ndarray, kept: np.ndarray | None) -> None:
        if kept is not None and self.kept is not None:
            self.kept.put(number, kept)
        self.logits.put(number, logits)

    def take_back(self, number: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Waits in the leader for what the last stage hands back. Raises RankError if it does not come."""
        logits = self.logits.take(number, lambda: self._late(number))
        return logits, None if self.kept is None else self.kept.take(number, lambda: self._late(number))

    def _late(self, number: int) -> int:
        """Returns the first rank of the first stage that has not handed a step on."""
        stages = (stage for stage, mail in enumerate(self.behind) if not mail.has(number))
        return self.tensor * next(stages, len(self.behind))
