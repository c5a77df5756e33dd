"""A replica's part in the steps of its group, of which each is a round of all: one that has no rows runs it too."""

import os
import threading
import time
from collections.abc import Callable

import numpy as np

from appliance.engine.pulse import Pulse
from appliance.kernels.interface import Executable, StatePieces, StepInputs
from appliance.kernels.lockstep import Lockstep


class Rounds:
    """The replica's part. Its own steps are rounds by themselves: the executable says so to the others."""

    def __init__(self, lockstep: Lockstep, executable: Executable, num_groups: int, *, has_states: bool) -> None:
        self._lockstep, self._executable = lockstep, executable
        self._empty = empty_step(num_groups, has_states=has_states)

    def __bool__(self) -> bool:
        """Returns whether others wait for this replica."""
        return self._lockstep.is_wanted

    def take_part(self, pulse: Pulse) -> None:
        """Runs a step without rows. Raises RankError."""
        pulse.since = time.monotonic()
        self._executable.run(self._empty)
        pulse.since = 0.0


def watch(lockstep: Lockstep, wanted: Callable[[], None], gone: Callable[[str], None]) -> None:
    """Has a function called, from another thread, each time that the others want something, and another one with the
    reason when the group cannot go on."""

    def run() -> None:
        while os.read(lockstep.wake_descriptor, 8):
            if lockstep.ranks.has_failed:
                return gone(lockstep.ranks.reason)
            wanted()
        return None

    threading.Thread(target=run, name="rounds", daemon=True).start()


def empty_step(num_groups: int, *, has_states: bool) -> StepInputs:
    """Returns a step without rows. num_groups: of the program's caches."""

    def numbers(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.int32)

    pieces = StatePieces(numbers(1), numbers(1), numbers(0), numbers(0)) if has_states else None
    return StepInputs(
        token_ids=numbers(0),
        positions=numbers(0),
        slot_mapping=numbers(num_groups, 0),
        query_start=numbers(1),
        seq_lens=numbers(0),
        block_tables=numbers(num_groups, 0, 1),
        sampled_rows=numbers(0),
        states=pieces,
    )
