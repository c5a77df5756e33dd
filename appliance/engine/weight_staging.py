"""New weights that are read and checked beside the steps, by one process or by all ranks of a group."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from appliance.base.errors import ApplianceError
from appliance.base.log import logger
from appliance.engine.weight_messages import WeightUpdate
from appliance.kernels.errors import ExecutableError
from appliance.kernels.interface import Executable
from appliance.kernels.updates import StagedWeights, Updates
from appliance.loading.updates import NewWeights, OtherWeights

_log = logger("engine")
_NICENESS = 10  # of the threads that read: a tenth of a core that steps would use


@dataclass(frozen=True, slots=True)
class StagedUpdate:
    """New weights in memory, and the digest of their source."""

    weights: StagedWeights
    digest: str


class Staging(Protocol):
    """What reads new weights."""

    def begin(self, update: WeightUpdate, digest_before: str) -> Callable[[], StagedUpdate]:
        """Begins between two steps. Returns a function that reads and checks, and may run on another thread. What that
        raises is why the old weights stay; then `drop` follows."""

    def drop(self) -> None:
        """Forgets, between two steps, what was read of an update that is refused."""

    def close(self) -> None:
        """Waits until this process reads nothing: that needs the executable, which is closed next."""


@runtime_checkable
class StagesTogether(Protocol):
    """An executable of several processes."""

    def staging(self, own: Callable[[Executable], Staging]) -> Staging:
        """Returns what has all of them read. own: makes it for the executable of this process."""


class OwnStaging:
    """One executable, and where other weights for it are read."""

    def __init__(self, executable: Executable, source: OtherWeights) -> None:
        assert isinstance(executable, Updates), "its kernel set takes other weights"
        self._executable: Updates = executable
        self._source = source
        self._reading, self._is_closed = threading.Lock(), False

    def begin(self, update: WeightUpdate, digest_before: str) -> Callable[[], StagedUpdate]:
        return lambda: self._stage(update, digest_before)

    def drop(self) -> None:
        """Does nothing: what was read was closed."""

    def close(self) -> None:
        with self._reading:
            self._is_closed = True

    def _stage(self, update: WeightUpdate, digest_before: str) -> StagedUpdate:
        staged: StagedWeights | None = None
        try:
            with self._reading, self._opened(update, digest_before) as new:
                staged = self._executable.stage_weights(new.weights)
        except BaseException:
            if staged is not None:
                staged.close()
            raise
        return StagedUpdate(staged, new.digest)

    @contextmanager
    def _opened(self, update: WeightUpdate, digest_before: str) -> Iterator[NewWeights]:
        if self._is_closed:
            raise ExecutableError("the engine ends")
        self._source.check_adapters()
        if update.path is not None:
            opened = self._source.of_checkpoint(Path(update.path), update.sha256)
        else:
            opened = self._source.of_tensors(update.tensors, digest_before)
        with opened as new:
            yield new


def reason_of(error: BaseException) -> str:
    """Returns why weights were refused. What they raise is their own matter: nothing of them is in place yet."""
    if not isinstance(error, Exception):
        raise error
    if isinstance(error, ApplianceError):
        return f"{error}; {error.hint}" if error.hint else str(error)
    if not isinstance(error, OSError | MemoryError | ValueError):
        _log.error("new weights raised what nothing here expects", exc_info=error)
    return f"the new weights could not be read: {str(error) or type(error).__name__}"


def be_nice() -> None:
    """Lets every other thread of the process go before this one, and those that it starts."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
