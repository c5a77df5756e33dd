"""An engine that gives its memory back and takes it again: level 1 keeps the weights on the host, level 2 nothing."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, runtime_checkable

from msgspec.structs import replace

from appliance.base.errors import ApplianceError
from appliance.engine.messages import UtilityRequest
from appliance.engine.sleep_messages import SLEEP_TAGS, SleepLevel, SleepStats, SleepTag
from appliance.engine.swap_memory import Swap
from appliance.kernels.errors import ExecutableError
from appliance.kernels.interface import Executable, Sleeps
from appliance.loading.model import ReadWeights
from appliance.loading.moved_experts import MovedExperts

REFUSAL = "the engine sleeps and takes no requests; POST /wake_up"


class Sleeper(Protocol):
    """What gives memory back, and takes it again part by part."""

    def sleep(self, level: SleepLevel) -> None:
        """Gives back what caches and weights take. No step runs before both are awake."""

    def wake(self, part: SleepTag) -> None:
        """Brings a part back; one that is awake stays. Raises ExecutableError if that cannot be: it sleeps on."""


@runtime_checkable
class SleepsTogether(Protocol):
    """An executable of several processes."""

    def sleeper(self, own: Callable[[Executable], Sleeper]) -> Sleeper:
        """Returns what lets all of them sleep. own: makes it for the executable of this process."""


class SleepingExecutable:
    """One executable with its weights. read_weights: opens its checkpoint, for weights that were not kept. experts:
    that lie elsewhere than the checkpoint has them. swap: what is in it is lost with the caches."""

    def __init__(
        self,
        executable: Executable,
        read_weights: ReadWeights,
        experts: MovedExperts | None = None,
        swap: Swap | None = None,
    ) -> None:
        assert isinstance(executable, Sleeps), "the plan says that its kernel set sleeps"
        self._executable: Sleeps = executable
        self._read_weights, self._experts, self._swap = read_weights, experts, swap
        self._level: SleepLevel = 1

    def sleep(self, level: SleepLevel) -> None:
        self._level = level
        self._executable.sleep(keep_weights=level == 1)
        if self._swap is not None:
            self._swap.release()

    def wake(self, part: SleepTag) -> None:
        if part == "kv_cache":
            return self._executable.wake_caches()
        if self._level == 1:
            return self._executable.wake_weights(None)
        try:
            with self._read_weights() as weights:
                self._executable.wake_weights(weights)
            if self._experts is not None:
                self._experts.put_again()
        except ExecutableError:
            raise
        except (ApplianceError, OSError) as error:
            raise ExecutableError(f"the weights cannot be read again: {error}") from error
        return None


class Sleep:
    """The state of sleeping, of all that an engine has. Its parts wake in their order."""

    def __init__(self, parts: Sequence[Sleeper], clock: Callable[[], float] = time.monotonic) -> None:
        self._parts, self._clock = parts, clock
        self.stats = SleepStats()

    @property
    def is_asleep(self) -> bool:
        return bool(self.stats.asleep)

    def change(self, request: UtilityRequest) -> str | None:
        """Does what is asked for: "sleep", while no request is open, or "wake_up". Returns why it could not."""
        try:
            if request.method == "wake_up":
                self.wake(request.tags)
            else:
                self.begin(request.level)
        except ExecutableError as error:  # the device has no memory left: it sleeps on
            return str(error)
        return None

    def begin(self, level: SleepLevel) -> None:
        """Puts weights and caches away, while no request is open. Of one that sleeps already nothing changes."""
        if self.is_asleep:
            return
        started = self._clock()
        for each in self._parts:
            each.sleep(level)
        self.stats = SleepStats(asleep=SLEEP_TAGS, level=level, sleep_s=self._clock() - started)

    def wake(self, tags: Collection[SleepTag]) -> None:
        """Brings parts back; all without tags. Raises ExecutableError if there is no memory left for one."""
        started = self._clock()
        wanted = [tag for tag in self.stats.asleep if not tags or tag in tags]
        for tag in wanted:
            for each in self._parts:
                each.wake(tag)
            left = tuple(other for other in self.stats.asleep if other != tag)
            self.stats = replace(self.stats, asleep=left)
        self.stats = replace(self.stats, wake_s=self._clock() - started)
