"""The states of the model that wait until a head reads them: the last ones of each row, in a ring."""

import numpy as np


class WaitingStates:
    """Keeps up to `num_kept` states of `width` numbers of each row, f32."""

    def __init__(self, num_rows: int, num_kept: int, width: int) -> None:
        self._num_kept = num_kept
        self._ring = np.zeros((num_rows, num_kept, width), np.float32)
        self._from, self._to = [0] * num_rows, [0] * num_rows  # positions whose states wait

    @property
    def memory_bytes(self) -> int:
        return self._ring.nbytes

    def put(self, row: int) -> None:
        """Begins a row, of which no state is known."""
        self._from[row] = self._to[row] = 0

    def observe(self, row: int, start: int, states: np.ndarray) -> None:
        """Takes the states of a row's tokens from position `start` on, f32 [tokens, width]."""
        end = start + len(states)
        if start > self._to[row]:
            self._from[row] = start  # behind a cached prefix
        states = states[-self._num_kept :]
        self._ring[row, np.arange(end - len(states), end) % self._num_kept] = states
        self._to[row] = end
        self._from[row] = max(min(self._from[row], start), end - self._num_kept)

    def first(self, row: int) -> int:
        """Returns the first position whose state waits."""
        return self._from[row]

    def reach(self, row: int, end: int) -> bool:
        """Returns whether the state before position `end` waits."""
        return self._from[row] < end <= self._to[row]

    def read(self, row: int, start: int, end: int) -> np.ndarray:
        """Returns the states from position `start` to before `end`, f32 [positions, width]; they have to wait."""
        states: np.ndarray = self._ring[row, np.arange(start, end) % self._num_kept]
        return states
