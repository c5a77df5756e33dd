"""The state of the engine at any moment, for readiness and for the status file."""

import enum
from dataclasses import dataclass, field

from appliance.engine.messages import BootPhase


class EngineState(enum.StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"  # it died or hung; a new one is on its way
    DRAINING = "draining"
    FAILED = "failed"  # it will not come back by itself
    STOPPED = "stopped"


@dataclass(slots=True)
class Health:
    """`reason` says why the engine is not ready, or what the last failure was. The step is the last heartbeat's."""

    state: EngineState = EngineState.STARTING
    reason: str = "the engine is starting"
    phases: dict[str, BootPhase] = field(default_factory=dict)
    num_restarts: int = 0
    step: int = 0
    step_seconds: float = 0.0  # how long it had run; 0 between steps

    @property
    def is_ready(self) -> bool:
        return self.state is EngineState.READY

    def reasons(self) -> list[str]:
        """Empty when ready."""
        return [] if self.is_ready else [self.reason]
