"""The engine in the caller's process, for batch, bench and the Python API: same messages and events, no sockets."""

from collections import deque
from collections.abc import Callable
from typing import Self

import msgspec

from appliance.base.errors import ApplianceError
from appliance.engine.boot import boot
from appliance.engine.events import Events
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import (
    BootPhase,
    EngineEvent,
    EngineMessage,
    UtilityMethod,
    UtilityRequest,
    UtilityResult,
)
from appliance.plan.types import EnginePlan

_CLIENT = b"inproc"


def _ignore(phase: BootPhase) -> None:
    """Ignores the phases of the start."""


class InprocEngine:
    """Runs a step when the caller asks for events. Only one thread at a time may use it.

    An exception in a step is raised by `receive`; the engine cannot be used after that.
    """

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self._events: deque[EngineEvent] = deque()

    @classmethod
    def from_plan(cls, plan: EnginePlan, announce: Callable[[BootPhase], None] = _ignore) -> Self:
        """Loads the model and reports phases to `announce`. Raises ApplianceError (see load_backend) and ValueError.

        It has no streaming readers, so the plan's target for a step's duration is dropped. It is one engine: a plan
        with replicas is refused.
        """
        if plan.parallel.replicas > 1:
            message = f"parallelism.data is {plan.parallel.data}, and this runs one engine in its own process"
            raise ApplianceError(message, hint="--set parallelism.data=1, or ask a server that is applied")
        scheduler = msgspec.structs.replace(plan.scheduler, target_step_s=None)
        return cls(boot(msgspec.structs.replace(plan, scheduler=scheduler), announce))

    @property
    def has_work(self) -> bool:
        return self._loop.has_work or bool(self._events)

    def send(self, message: EngineMessage) -> None:
        self._keep(self._loop.handle(_CLIENT, message))

    def receive(self) -> list[EngineEvent]:
        """Returns the events since the last call; runs one step if there are none. Empty when the engine is idle."""
        if not self._events:
            self._keep(self._loop.step())
            self._keep(self._loop.drained())
        events = list(self._events)
        self._events.clear()
        return events

    def call(self, method: UtilityMethod) -> msgspec.Raw:
        """Returns the result of a call that needs no step: any method of UtilityRequest except drain."""
        (event,) = self._loop.handle(_CLIENT, UtilityRequest(call_id="", method=method))
        assert isinstance(event[1], UtilityResult)
        return event[1].value

    def close(self) -> None:
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep(self, events: Events) -> None:
        self._events.extend(event for _, event in events)
