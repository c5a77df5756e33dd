"""An engine that gives its memory back and takes it again: level 1 keeps the weights on the host, level 2 nothing."""

import time
from collections.abc import Callable, Collection

from msgspec.structs import replace

from appliance.engine.sleep_messages import SLEEP_TAGS, SleepStats, SleepTag
from appliance.kernels.interface import Sleeps
from appliance.loading.model import ReadWeights

REFUSAL = "the engine sleeps and takes no requests; POST /wake_up"


class Sleep:
    """The state of sleeping. read_weights: opens the checkpoint, for weights that were not kept."""

    def __init__(
        self, executable: Sleeps, read_weights: ReadWeights, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._executable, self._read_weights, self._clock = executable, read_weights, clock
        self.stats = SleepStats()

    @property
    def is_asleep(self) -> bool:
        return bool(self.stats.asleep)

    def begin(self, level: int) -> None:
        """Puts weights and caches away, while no request is open. Of one that sleeps already nothing changes."""
        if self.is_asleep:
            return
        started = self._clock()
        self._executable.sleep(keep_weights=level == 1)
        self.stats = SleepStats(asleep=SLEEP_TAGS, level=level, sleep_s=self._clock() - started)

    def wake(self, tags: Collection[SleepTag]) -> None:
        """Brings parts back; all without tags. Raises ExecutableError if the device has no memory left for one."""
        started = self._clock()
        wanted = [tag for tag in self.stats.asleep if not tags or tag in tags]
        for tag in wanted:
            if tag == "kv_cache":
                self._executable.wake_caches()
            elif self.stats.level == 1:
                self._executable.wake_weights(None)
            else:
                with self._read_weights() as weights:
                    self._executable.wake_weights(weights)
            left = tuple(other for other in self.stats.asleep if other != tag)
            self.stats = replace(self.stats, asleep=left)
        self.stats = replace(self.stats, wake_s=self._clock() - started)
