"""How stages hand on where ranks share no memory: through the leader.

A later stage is told of a step when what it reads of the stage before is there: the rows are part of the message. What
else it is told waits behind that, so that every stage hears of all things in the order in which they were said.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec
import numpy as np

from appliance.engine.ranks.messages import ENCODE, Array, FromRank, HandedBack, HandedOn, RunArrays, ToRank
from appliance.kernels.interface import StepInputs
from appliance.kernels.linked_ranks import LinkedRanks
from appliance.kernels.ranks import RankError

_LOOK_S = 0.05  # between two looks whether a rank has failed


class FollowerLink:
    """A follower's end: what its stage hands on is said to the leader."""

    def __init__(self, say: Callable[[FromRank], None]) -> None:
        self._say = say

    def given(self, number: int, inputs: StepInputs) -> np.ndarray | None:
        return inputs.given

    def hand_on(self, number: int, rows: np.ndarray) -> None:
        self._say(HandedOn(number, Array.of(rows)))

    def hand_back(self, number: int, logits: np.ndarray, kept: np.ndarray | None) -> None:
        self._say(HandedBack(number, Array.of(logits), None if kept is None else Array.of(kept)))


class LeaderLinks:
    """The leader's end: the messages to each later stage, in order, and what the last one hands back."""

    def __init__(self, num_stages: int, send: Callable[[int, bytes], None], ranks: LinkedRanks) -> None:
        """send: sends an encoded message to all ranks of a stage. ranks: of the leader, whose failure ends waits."""
        self._send, self._ranks = send, ranks
        self._handed = [0] * num_stages  # by stage, the last step that it handed on or back
        self._lock = threading.Condition()
        self._waiting: list[deque[ToRank]] = [deque() for _ in range(num_stages)]
        self._rows: list[dict[int, Array]] = [{} for _ in range(num_stages)]  # by stage that reads them, and step
        self._back: dict[int, HandedBack] = {}

    def given(self, number: int, inputs: StepInputs) -> np.ndarray | None:
        return None

    def hand_on(self, number: int, rows: np.ndarray) -> None:
        self.heard(0, HandedOn(number, Array.of(rows)))

    def hand_back(self, number: int, logits: np.ndarray, kept: np.ndarray | None) -> None:
        raise AssertionError("the leader is in the first of several stages")

    def tell(self, message: ToRank) -> None:
        """Tells the later stages, each when it can be told."""
        with self._lock:
            for stage in range(1, len(self._waiting)):
                self._waiting[stage].append(message)
                self._flush(stage)

    def heard(self, stage: int, handed: HandedOn | HandedBack) -> None:
        """Takes what a stage hands on or back. Any thread may call it."""
        with self._lock:
            self._handed[stage] = handed.number
            if isinstance(handed, HandedBack):
                self._back[handed.number] = handed
                self._lock.notify_all()
                return
            self._rows[stage + 1][handed.number] = handed.rows
            self._flush(stage + 1)

    def take_back(self, number: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Waits for what the last stage gives of a step. Raises RankError if it does not come."""
        deadline = time.monotonic() + self._ranks.timeout_s
        with self._lock:
            while number not in self._back:
                if self._ranks.has_failed:
                    raise RankError("a rank failed")
                if time.monotonic() > deadline:
                    late = next(stage for stage, last in enumerate(self._handed) if last < number)
                    rank = late * self._ranks.num_ranks
                    raise RankError(f"rank {rank} did not come within {self._ranks.timeout_s:g} s")
                self._lock.wait(_LOOK_S)
            back = self._back.pop(number)
        return back.logits.array(), None if back.kept is None else back.kept.array()

    def _flush(self, stage: int) -> None:
        """Sends what a stage can be told by now."""
        waiting, rows = self._waiting[stage], self._rows[stage]
        while waiting:
            message = waiting[0]
            if isinstance(message, RunArrays):
                given = rows.pop(message.number, None)
                if given is None:
                    return
                message = msgspec.structs.replace(message, arrays={**message.arrays, "given": given})
            waiting.popleft()
            self._send(stage, ENCODE(message))
