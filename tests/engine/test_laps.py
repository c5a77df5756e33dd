"""The parts of a step that laps measure while nobody profiles."""

from typing import Any, cast

import pytest

from appliance.engine import laps
from appliance.engine.laps import Laps
from appliance.kernels.interface import StepInputs

INPUTS = cast(StepInputs, None)  # of which these laps read nothing


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


def test_what_a_model_drafts_before_a_step_is_no_scheduling(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Any = Clock()
    monkeypatch.setattr(laps, "time", clock)
    measured = Laps()
    for drafting_s in (5.0, None):
        measured.begin()
        if drafting_s is not None:
            clock.now += drafting_s
            measured.lap("draft")
        clock.now += 0.25
        measured.lap("schedule")
        assert (measured.scheduler_s, measured.model_s) == (0.25, 0.0)
        clock.now += 1.0
        measured.lap("prepare")
        clock.now += 2.0
        measured.ran(INPUTS)
        clock.now += 4.0
        measured.lap("sample")
        assert (measured.scheduler_s, measured.model_s) == (0.25, 2.0)
