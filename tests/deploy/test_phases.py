"""Phases add up to the wall time."""

import pytest

from appliance.deploy.follow import Event
from appliance.deploy.phases import PhaseClock, table
from appliance.deploy.start_events import StartProgress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_sum_is_the_wall_time() -> None:
    clock = Clock()
    phases = PhaseClock("resolve", clock)
    clock.now = 101.0
    phases.begin("plan")
    clock.now = 104.0
    phases.begin("spawn", at=103.5)  # an event that is told a little later
    phases.begin("import", at=102.0)  # and one whose time lies before the last: no phase is negative
    clock.now = 106.0
    phases.begin("plan")
    clock.now = 107.0
    found = {phase.name: phase.seconds for phase in phases.finish()}
    assert found == pytest.approx({"resolve": 1.0, "plan": 3.5, "spawn": 0.0, "import": 2.5})
    assert sum(found.values()) == pytest.approx(clock.now - 100.0)
    assert table(phases.finish()).splitlines()[-1].split() == ["total", "7.00", "s"]


def test_a_phase_that_was_over_before_anyone_looked_is_in_the_table() -> None:
    progress = StartProgress()
    ended = Event(0.0, "phase", {"name": "weights", "ended": True, "done": 0, "total": 0})
    assert progress.take(ended) == "load weights"
    assert progress.take(ended) is None
