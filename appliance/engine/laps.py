"""The laps of a step: marks at which the clock is read. These ones measure no more than the parts of the last step."""

import time

from appliance.engine.step import StepPlan
from appliance.engine.time_messages import PartSeconds
from appliance.kernels.interface import StepInputs


class Laps:
    """Is called when a step begins and ends, and when each of its phases has ended.

    scheduler_s, model_s: of the last step. The first is until the phase "schedule" ended, after a model's drafts
    where it drafts; the second is in the call of the model.
    """

    def __init__(self) -> None:
        self.scheduler_s = self.model_s = 0.0
        self._begun = self._prepared = 0.0

    def begin(self) -> None:
        """Marks the begin of a step."""
        self._begun = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Marks the end of the phase that ran since the last mark."""
        if phase == "schedule":
            self.scheduler_s = time.perf_counter() - self._begun
            self.model_s = 0.0
        elif phase == "draft":  # a model drafted before the step is scheduled
            self._begun = time.perf_counter()
        elif phase == "prepare":
            self._prepared = time.perf_counter()

    def parts(self, execute_s: float, *, has_stages: bool) -> PartSeconds:
        """Returns the parts of the last step, all of which but its scheduling took so long. The model's stages are most
        of a step of several, and no call is it."""
        return PartSeconds(self.scheduler_s, execute_s if has_stages else self.model_s, execute_s)

    def ran(self, inputs: StepInputs) -> None:
        """Marks the end of the phase "model"."""
        self.model_s = time.perf_counter() - self._prepared

    def started(self) -> None:
        """Marks that the model began the next step early: until `ran`, all time counts for the phase "model"."""

    def given_up(self) -> None:
        """Marks that the step started early, if any, was cancelled."""

    def end(self, plan: StepPlan) -> None:
        """Marks the end of the step."""
