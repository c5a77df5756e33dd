"""The state of several engines as one."""

from collections.abc import Callable, Mapping, Sequence

from appliance.engine.messages import BootPhase
from appliance.service.health import EngineHealth, EngineState, Health

# Of several states the first that one of the engines has: they serve while one of them does.
_ORDER = (
    EngineState.READY,
    EngineState.DRAINING,
    EngineState.STARTING,
    EngineState.RESTARTING,
    EngineState.FAILED,
    EngineState.STOPPED,
)


class SetHealth:
    """Ready while at least one replica is. Phases, steps and restarts are those of all."""

    def __init__(self, now: Callable[[], Mapping[int, Health]]) -> None:
        """now: returns the health of each replica, by its number."""
        self._now = now

    @property
    def replicas(self) -> Mapping[int, EngineHealth]:
        return self._now()

    @property
    def state(self) -> EngineState:
        return min((each.state for each in self._now().values()), key=_ORDER.index)

    @property
    def reason(self) -> str:
        """Says of each replica that is not ready why, whether others serve or not."""
        told = [f"engine {number}: {each.reason}" for number, each in self._now().items() if not each.is_ready]
        return "; ".join(told)

    @property
    def is_ready(self) -> bool:
        return self.state is EngineState.READY

    @property
    def is_paused(self) -> bool:
        return any(each.is_paused for each in self._now().values() if each.is_ready)

    @property
    def phases(self) -> Mapping[str, BootPhase]:
        """Of each phase the one that has come least far."""
        found: dict[str, BootPhase] = {}
        for health in self._now().values():
            for name, phase in health.phases.items():
                if name not in found or _share(phase) < _share(found[name]):
                    found[name] = phase
        return found

    @property
    def num_restarts(self) -> int:
        return sum(each.num_restarts for each in self._now().values())

    @property
    def step(self) -> int:
        return sum(each.step for each in self._now().values())

    @property
    def step_seconds(self) -> float:
        return max(each.step_seconds for each in self._now().values())

    def reasons(self) -> Sequence[str]:
        """Empty when ready."""
        return [] if self.is_ready else [self.reason]


def _share(phase: BootPhase) -> float:
    return 1.0 if phase.ended else phase.done / max(phase.total, 1)
