"""The state of the engine at any moment, for readiness and for the status file."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from appliance.engine.messages import BootPhase


class EngineState(enum.StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"  # it died or hung; a new one is on its way
    DRAINING = "draining"
    FAILED = "failed"  # it will not come back by itself
    STOPPED = "stopped"


class EngineHealth(Protocol):
    """The state of what takes requests: one engine, or several replicas of it.

    `reason` says why it is not ready, or what the last failure was. replicas: of each by its number, where there are
    several.
    """

    @property
    def state(self) -> EngineState: ...

    @property
    def reason(self) -> str: ...

    @property
    def phases(self) -> Mapping[str, BootPhase]: ...

    @property
    def num_restarts(self) -> int: ...

    @property
    def step(self) -> int: ...

    @property
    def step_seconds(self) -> float: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def is_paused(self) -> bool: ...

    @property
    def replicas(self) -> "Mapping[int, EngineHealth]": ...

    def reasons(self) -> Sequence[str]:
        """Empty when ready."""


@dataclass(slots=True)
class Health:
    """`reason` says why the engine is not ready, or what the last failure was. The step is the last heartbeat's."""

    state: EngineState = EngineState.STARTING
    reason: str = "the engine is starting"
    phases: dict[str, BootPhase] = field(default_factory=dict)
    num_restarts: int = 0
    step: int = 0
    step_seconds: float = 0.0  # how long it had run; 0 between steps
    is_paused: bool = False  # at the last heartbeat: requests are taken, and wait

    @property
    def is_ready(self) -> bool:
        return self.state is EngineState.READY

    @property
    def replicas(self) -> Mapping[int, EngineHealth]:
        """None: this is one engine's."""
        return MappingProxyType({})

    def reasons(self) -> Sequence[str]:
        """Empty when ready."""
        return [] if self.is_ready else [self.reason]
