"""Where the time of an apply goes. Phases follow each other without gaps, so their sum is the wall time."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    seconds: float


class PhaseClock:
    """One phase is open at any moment. Times are of the wall clock: the server's events carry it too."""

    def __init__(self, first: str, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._since = clock()
        self._name = first
        self._ended: list[Phase] = []

    @property
    def name(self) -> str:
        return self._name

    def begin(self, name: str, at: float | None = None) -> None:
        """Ends the open phase and begins another, now or at a moment since the last begin."""
        moment = min(max(at if at is not None else self._clock(), self._since), self._clock())
        if name == self._name:
            return
        self._ended.append(Phase(self._name, moment - self._since))
        self._name, self._since = name, moment

    def finish(self) -> tuple[Phase, ...]:
        """All phases; those that began more than once are added up."""
        phases = [*self._ended, Phase(self._name, self._clock() - self._since)]
        seconds: dict[str, float] = {}
        for phase in phases:
            seconds[phase.name] = seconds.get(phase.name, 0.0) + phase.seconds
        return tuple(Phase(name, spent) for name, spent in seconds.items())


def table(phases: tuple[Phase, ...]) -> str:
    """Seconds of each phase, and their sum."""
    rows = [*phases, Phase("total", sum(phase.seconds for phase in phases))]
    width = max(len(phase.name) for phase in rows)
    return "\n".join(f"  {phase.name:<{width}}  {phase.seconds:8.2f} s" for phase in rows)
