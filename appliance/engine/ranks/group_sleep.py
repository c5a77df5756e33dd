"""The sleep of a group of ranks: each gives back what it has, and the group is awake when all are."""

from typing import Protocol

from appliance.engine.ranks.messages import PutToSleep, ToRank, WakeUp
from appliance.engine.sleep import Sleeper
from appliance.engine.sleep_messages import SleepLevel, SleepTag
from appliance.kernels.errors import ExecutableError


class Sleepers(Protocol):
    """The other ranks."""

    def send(self, message: ToRank) -> None: ...

    def wait_done(self) -> str | None:
        """Waits until all have done what they were told; returns why one could not. Raises RankFailedError."""


class GroupSleeper:
    """All ranks, the leader among them."""

    def __init__(self, own: Sleeper, others: Sleepers) -> None:
        self._own, self._others = own, others

    def sleep(self, level: SleepLevel) -> None:
        """Puts all ranks to sleep at once. Raises RankFailedError."""
        self._others.send(PutToSleep(level))
        self._own.sleep(level)
        self._others.wait_done()

    def wake(self, part: SleepTag) -> None:
        """Brings a part back on all ranks at once. Where one cannot, the part sleeps on for the group, and those that
        have it have nothing to do the next time. Raises ExecutableError then, and RankFailedError."""
        self._others.send(WakeUp(part))
        failure: ExecutableError | None = None
        try:
            self._own.wake(part)
        except ExecutableError as error:
            failure = error
        reason = self._others.wait_done()
        if failure is not None:
            raise failure
        if reason is not None:
            raise ExecutableError(reason)
