"""Marks in the course of a step, where a profiler looks at the clock. Nobody looks at these."""

from appliance.engine.step import StepPlan
from appliance.kernels.interface import StepInputs


class Laps:
    """Told when a step begins and ends, and when each phase of it has ended."""

    def begin(self) -> None:
        """A step begins."""

    def lap(self, phase: str) -> None:
        """The phase that ran since the last mark ended."""

    def ran(self, inputs: StepInputs) -> None:
        """The model ran; so ends the phase "model"."""

    def started(self) -> None:
        """The model began with the next step: until it `ran`, other phases take no time of their own."""

    def given_up(self) -> None:
        """The step that was started, if any, is not to be."""

    def end(self, plan: StepPlan) -> None:
        """The step has ended."""
