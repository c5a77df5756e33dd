"""The laps of a step: marks at which a profiler reads the clock. These ones do nothing."""

from appliance.engine.step import StepPlan
from appliance.kernels.interface import StepInputs


class Laps:
    """Is called when a step begins and ends, and when each of its phases has ended."""

    def begin(self) -> None:
        """Marks the begin of a step."""

    def lap(self, phase: str) -> None:
        """Marks the end of the phase that ran since the last mark."""

    def ran(self, inputs: StepInputs) -> None:
        """Marks the end of the phase "model"."""

    def started(self) -> None:
        """Marks that the model began the next step early: until `ran`, all time counts for the phase "model"."""

    def given_up(self) -> None:
        """Marks that the step started early, if any, was cancelled."""

    def end(self, plan: StepPlan) -> None:
        """Marks the end of the step."""
