"""Decides when experts move, and where to: a pure function of how often each was chosen, and of measured steps.

Every `step_interval` steps, the loads of the last `window_size` steps say where copies of experts would be spread best
(program.balance). Mixtures whose ranks would be more alike by LEAST_GAIN get new places, one mixture between two steps,
so that a pause is short and no step sees a mixed table. If steps were no faster after SLOWER_IN_A_ROW rearrangements in
a row, experts stay where they are.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from appliance.program.balance import balanced, balancedness

LEAST_GAIN = 0.02  # of balancedness
SLOWER_IN_A_ROW = 2
_PARTS = 16  # of the window: loads are forgotten by so many steps at a time


class BalanceSettings(NamedTuple):
    """The steps whose loads are remembered, and those between two rearrangements."""

    window_size: int
    step_interval: int
    logs_each_step: bool = False


class ExpertMove(NamedTuple):
    """The new places of a mixture: the expert of each."""

    mixture: int
    placed: tuple[int, ...]


class BalanceReport(NamedTuple):
    """num_rearranged: how often experts moved. balancedness: of the loads of the window in the places of now, the mean
    over mixtures. speed_up: the seconds of steps before the last rearrangement divided by those after it; 0 while that
    is not measured. is_off: experts stay where they are, as moving them made steps no faster."""

    num_rearranged: int
    balancedness: float
    speed_up: float
    is_off: bool


class ExpertBalancer:
    def __init__(self, settings: BalanceSettings, places: Sequence[tuple[int, ...]], num_ranks: int) -> None:
        """places: the expert of each place, for each mixture."""
        self._settings, self._places, self._num_ranks = settings, list(places), num_ranks
        self._part = max(1, settings.window_size // _PARTS)
        self._seen: deque[np.ndarray] = deque(maxlen=-(-settings.window_size // self._part) + 1)
        self._now: np.ndarray | None = None
        self._num_steps = self._num_rearranged = self._num_slower = 0
        self._moves: deque[ExpertMove] = deque()
        self._times, self._former = _Times(), _Times()
        self._has_moved, self._speed_up = False, 0.0
        self._just_moved = False
        self._balancedness: float | None = None  # what was told last, until it is due again

    @property
    def is_off(self) -> bool:
        return self._num_slower >= SLOWER_IN_A_ROW

    def note(self, loads: np.ndarray, num_rows: int, seconds: float | None) -> None:
        """Takes what a step did. loads: int64 [mixtures, E], how often each expert was chosen until now. seconds: of
        the step; None where it was not measured."""
        if self._num_steps % self._part == 0:
            self._seen.append(np.zeros_like(loads) if self._now is None else self._now)
        if self._num_steps % self._part == 0 or self._settings.logs_each_step:
            self._balancedness = None
        self._now = loads.copy()
        self._num_steps += 1
        if seconds is not None and not self._moves and not self._just_moved:
            self._times.add(num_rows, seconds)
        self._just_moved = False  # other ranks may have read on while that step began
        if self._num_steps % self._settings.step_interval == 0 and not self._moves:
            self._judge()
            self._plan()

    def next_move(self) -> ExpertMove | None:
        """Returns the next mixture to place anew before a step, once."""
        if not self._moves:
            return None
        move = self._moves.popleft()
        self._places[move.mixture] = move.placed
        self._just_moved, self._balancedness = True, None
        return move

    def report(self) -> BalanceReport:
        return BalanceReport(self._num_rearranged, self.balancedness(), self._speed_up, self.is_off)

    def balancedness(self) -> float:
        """Returns that of the window, the mean over mixtures: as it was when experts last moved, or a part of the
        window began, unless each step is logged. It reads the loads of all experts, and every step is told of."""
        if self._balancedness is None:
            each = [
                balancedness(loads, places, self._num_ranks)
                for loads, places in zip(self._loads(), self._places, strict=False)
            ]
            self._balancedness = sum(each) / len(each) if each else 1.0
        return self._balancedness

    def _loads(self) -> list[list[int]]:
        if self._now is None:
            return []
        found: list[list[int]] = (self._now - self._seen[0]).tolist()
        return found

    def _judge(self) -> None:
        """Compares steps since the last rearrangement with those before it."""
        speed_up = self._times.compared(self._former) if self._has_moved else None
        if speed_up is not None:
            self._speed_up = speed_up
            self._num_slower = 0 if speed_up > 1.0 else self._num_slower + 1
        self._former, self._times, self._has_moved = self._times, _Times(), False

    def _plan(self) -> None:
        if self.is_off:
            return
        for mixture, loads in enumerate(self._loads()):
            former = self._places[mixture]
            placed = balanced(loads, len(former), self._num_ranks, former)
            gain = balancedness(loads, placed, self._num_ranks) - balancedness(loads, former, self._num_ranks)
            if gain >= LEAST_GAIN:
                self._moves.append(ExpertMove(mixture, placed))
        if self._moves:
            self._has_moved = True
            self._num_rearranged += 1


class _Times:
    """The seconds of steps, by the power of two of their rows: only steps of like size are compared."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[int, float]] = {}

    def add(self, num_rows: int, seconds: float) -> None:
        count, total = self._sums.get(num_rows.bit_length(), (0, 0.0))
        self._sums[num_rows.bit_length()] = (count + 1, total + seconds)

    def compared(self, former: "_Times") -> float | None:
        """Returns how much longer steps took before; None if none were of like size."""
        before = now = 0.0
        for size in self._sums.keys() & former._sums.keys():
            (count, total), (former_count, former_total) = self._sums[size], former._sums[size]
            weight = min(count, former_count)
            before += weight * former_total / former_count
            now += weight * total / count
        return before / now if now else None
