"""The start of an engine, phase by phase, with seconds and bytes."""

import time
from collections.abc import Callable

from appliance.engine.backend import load_backend
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.inproc import build_loop
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import BootPhase
from appliance.engine.wire import raw
from appliance.plan.types import EnginePlan

REPORT_EVERY_S = 0.1  # between two progress events of one phase


class Boot:
    """Runs the phases and announces each; `report` is complete once `run` has returned."""

    def __init__(
        self, plan: EnginePlan, announce: Callable[[BootPhase], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan = plan
        self._announce = announce
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._phase = ""
        self._started = 0.0
        self._announced = 0.0
        self.report = raw(None)

    def run(self) -> EngineLoop:
        config = SchedulerConfig.from_plan(self._plan)
        backend = load_backend(self._plan, config, self._progress)
        self._end()
        memory = dict(backend.executable.memory_bytes)
        self.report = raw({"seconds": self._seconds, "memory_bytes": memory, "num_blocks": config.num_blocks})
        return build_loop(self._plan, backend, config, boot_report=self.report)

    def _progress(self, phase: str, done: int, total: int) -> None:
        now = self._clock()
        if phase != self._phase:
            self._end()
            self._phase, self._started, self._announced = phase, now, 0.0
        if now - self._announced >= REPORT_EVERY_S:
            self._announced = now
            self._announce(BootPhase(name=phase, seconds=now - self._started, done=done, total=total))

    def _end(self) -> None:
        if self._phase:
            seconds = self._clock() - self._started
            self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + seconds
            self._announce(BootPhase(name=self._phase, seconds=seconds, ended=True))
            self._phase = ""
