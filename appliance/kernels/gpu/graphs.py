"""Graphs of a program's steps: which are captured, when, and how a step runs by them.

A step is padded to a graph's size. The first steps of a size run operator by operator; then one of them is run so once
more, padded, and captured while it runs. What an idle engine asks for is captured over an empty step.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from appliance.base.log import fields, logger
from appliance.kernels.execution import ExecutionLimits, Graphs
from appliance.kernels.gpu.device import GraphMemory, Replay
from appliance.kernels.gpu.inputs import StepArrays
from appliance.kernels.gpu.operators.table import Run
from appliance.kernels.gpu.segments import Call, Segment, cut
from appliance.kernels.gpu.shapes import GraphSizes, StepShape
from appliance.kernels.gpu.step import BoundModel, DeviceStep
from appliance.kernels.interface import GraphReport, StepInputs
from appliance.program.operators import Operator
from appliance.program.slots import Extent

LEAST_STEPS = 4  # of a size, before it is captured between steps
MOST_SHARE = 0.1  # of the time, that capturing may take while steps run

_log = logger("kernels")


class Captures(Protocol):
    def __call__(self, run: Run, op: Operator, *, is_decode: bool) -> bool:
        """Returns whether a graph can hold an operator; see capturing.can_capture."""


class StepGraphs:
    """The graphs of one program over one set of buffers."""

    def __init__(
        self,
        calls: Sequence[Call],
        bound: BoundModel,
        graphs: Graphs,
        limits: ExecutionLimits,
        can_capture: Captures,
        clock: Callable[[], float] = time.monotonic,
        memory: GraphMemory | None = None,
    ) -> None:
        """memory: of graphs of another program over the same buffers, which then have one pool."""
        self._bound, self._limits, self._clock = bound, limits, clock
        has_any = bool(graphs.decode or graphs.tokens)
        self.memory = memory or (bound.device.graphs() if has_any else None)
        parts = cut(calls, lambda run, op: can_capture(run, op, is_decode=False))
        is_whole = all(can_capture(run, op, is_decode=True) for run, op in calls)
        if not is_whole:  # decodes are then captured part by part, as other steps
            graphs = replace(graphs, decode=())
        self._segments = {True: (Segment(tuple(calls), Extent.TOKENS),), False: parts}  # by StepShape.is_decode
        self._sizes = GraphSizes(graphs, limits)
        self._replays: dict[tuple[bool, int, int], Replay] = {}  # by is_decode, number of the segment, and rows
        self._captured: set[tuple[bool, int, int]] = set()  # by is_decode, tokens and sampled rows of a shape
        self._waiting = self._sizes.all()
        self._num_planned = len(self._waiting)
        self._steps: Counter[StepShape] = Counter()
        self._seconds, self._not_before = 0.0, 0.0

    @property
    def report(self) -> GraphReport:
        return GraphReport(len({key[:2] for key in self._captured}), self._num_planned, self._seconds)

    def shape_of(self, inputs: StepInputs) -> StepShape | None:
        """Returns the shape in which a step runs by graphs, or is captured now; None if it runs as it is."""
        shape = self._sizes.shape_of(inputs)
        if shape is None or _key(shape) in self._captured:
            return shape
        self._steps[shape] += 1
        is_due = self._steps[shape] > LEAST_STEPS and self._clock() >= self._not_before
        return shape if is_due else None

    def run(self, arrays: StepArrays) -> None:
        """Runs a step that was padded to a shape of `shape_of` or `next_shape`, and captures what is not yet."""
        shape = arrays.shape
        own = DeviceStep(self._bound, arrays.unpadded())
        rows = {Extent.TOKENS: shape.num_tokens, Extent.SAMPLED: shape.num_rows, None: 0}
        for number, segment in enumerate(self._segments[shape.is_decode]):
            count = rows[segment.extent]
            key = (shape.is_decode, number, count)
            replay = self._replays.get(key)
            if replay is not None:
                replay()
            elif count:
                self._replays[key] = self._capture(segment, arrays)
            else:
                _call(segment, own)
        self._captured.add(_key(shape))

    def next_shape(self) -> StepShape | None:
        """Returns the next shape that no graph is captured for, for an empty step; None if there is none."""
        while self._waiting:
            shape = self._waiting.pop(0)
            if _key(shape) not in self._captured:
                return shape
        return None

    def forget(self) -> None:
        """Drops all graphs, whose tensors get other addresses; they are captured again like the first ones."""
        self._replays.clear()
        self._captured.clear()
        self._steps.clear()
        self._waiting = self._sizes.all()

    def _capture(self, segment: Segment, arrays: StepArrays) -> Replay:
        """Runs a segment, which compiles and loads its kernels, and then captures it."""
        most = self._limits.max_num_batched_tokens

        def work() -> None:
            """Looks up anew what operators found out of the step: that is captured as well."""
            _call(segment, DeviceStep(self._bound, arrays, most if segment.extent is Extent.SAMPLED else None))

        work()
        started = self._clock()
        replay = self._captured_or_called(work)
        seconds = self._clock() - started
        self._seconds += seconds
        self._not_before = max(self._not_before, started) + seconds / MOST_SHARE
        _log.debug("a graph was captured", extra=fields(rows=arrays.shape.num_tokens, seconds=round(seconds, 4)))
        return replay

    def _captured_or_called(self, work: Callable[[], None]) -> Replay:
        """Captures work. Where the device does not take that, the work itself is called in place of a graph, over the
        same memory: the step is right, and no faster."""
        assert self.memory is not None, "there are graphs"
        try:
            return self.memory.capture(work)
        except RuntimeError as error:
            _log.error("a graph could not be captured", extra=fields(reason=str(error).partition("\n")[0]))
            return work


def _key(shape: StepShape) -> tuple[bool, int, int]:
    """Returns what decides the graphs of a shape: attention, which is not captured, reads how many sequences it has."""
    return shape.is_decode, shape.num_tokens, shape.num_rows


def _call(segment: Segment, step: DeviceStep) -> None:
    for run, op in segment.calls:
        run(op, step)
