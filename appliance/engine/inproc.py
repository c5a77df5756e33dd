"""An engine in the caller's process, for batch, bench and the Python API: same messages, same events, no sockets."""

from collections import deque
from typing import Self

from appliance.engine.backend import Backend, Progress, load_backend
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import EngineEvent, EngineMessage
from appliance.engine.runner import Runner
from appliance.engine.validation import SamplingLimits
from appliance.plan.types import EnginePlan

_CLIENT = b"inproc"


def build_loop(plan: EnginePlan, backend: Backend, config: SchedulerConfig, **options: object) -> EngineLoop:
    """Joins scheduler, runner and limits as the plan says. `options` are EngineLoop's."""
    runner = Runner(backend.executable, config, backend.vocab_size, plan.model.logprobs_mode)
    limits = SamplingLimits(plan.serving.max_n, plan.model.max_logprobs, plan.model.max_model_len)
    return EngineLoop(Scheduler(config), runner, limits, **options)  # type: ignore[arg-type] # passed through


class InprocEngine:
    """Runs a step whenever the caller asks for events. Not for use from several threads."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self._events: deque[EngineEvent] = deque()

    @classmethod
    def from_plan(cls, plan: EnginePlan, progress: Progress = lambda phase, done, total: None) -> Self:
        """Loads the model; see load_backend for what it raises."""
        config = SchedulerConfig.from_plan(plan)
        return cls(build_loop(plan, load_backend(plan, config, progress), config))

    @property
    def has_work(self) -> bool:
        return self._loop.has_work or bool(self._events)

    def send(self, message: EngineMessage) -> None:
        self._keep(self._loop.handle(_CLIENT, message))

    def receive(self) -> list[EngineEvent]:
        """What has happened since the last call; runs one step when nothing has. Empty when the engine is idle."""
        if not self._events:
            self._keep(self._loop.step())
            self._keep(self._loop.drained())
        events = list(self._events)
        self._events.clear()
        return events

    def close(self) -> None:
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep(self, events: list[tuple[bytes, EngineEvent]]) -> None:
        self._events.extend(event for _, event in events)
