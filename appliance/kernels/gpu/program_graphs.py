"""The graphs of a program, and of the same with places for adapters, in one pool of memory."""

from dataclasses import dataclass

from appliance.kernels.gpu.device import GraphMemory
from appliance.kernels.gpu.graphs import StepGraphs
from appliance.kernels.gpu.shapes import StepShape
from appliance.kernels.interface import GraphReport


@dataclass(frozen=True, slots=True)
class ProgramGraphs:
    """adapted: of steps with adapters; None for a set without places for any."""

    plain: StepGraphs
    adapted: StepGraphs | None

    @property
    def memory(self) -> GraphMemory | None:
        return self.plain.memory

    @property
    def report(self) -> GraphReport:
        """Counts the sizes of both."""
        found = [each.report for each in self._all]
        counts = sum(each.num_captured for each in found), sum(each.num_planned for each in found)
        return GraphReport(*counts, sum(each.seconds for each in found))

    def next(self) -> tuple[StepGraphs, StepShape] | None:
        """Returns the next shape that no graph is captured for, those without adapters first, and whose it is."""
        for each in self._all:
            shape = each.next_shape()
            if shape is not None:
                return each, shape
        return None

    def forget(self) -> None:
        """Drops all graphs, as StepGraphs does."""
        for each in self._all:
            each.forget()

    @property
    def _all(self) -> tuple[StepGraphs, ...]:
        return (self.plain,) if self.adapted is None else (self.plain, self.adapted)
