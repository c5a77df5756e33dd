"""The step profiler: where the seconds of steps go, by phase of the loop and by operator of the model."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from appliance.engine.laps import Laps
from appliance.engine.profile import EngineProfile, OperatorProfile, StepsProfile
from appliance.engine.step import StepPlan
from appliance.engine.step_trace import StepRecorder
from appliance.kernels.counts import count_step
from appliance.kernels.interface import Executable, Profiled, StepInputs
from appliance.program.work import ChunkReach, StepCounts, Unit, reaches_of

StepKind = Literal["decode", "prefill", "mixed"]


@dataclass(slots=True)
class _OperatorSums:
    """The sums over the operators of one label."""

    unit: Unit
    seconds: float = 0.0
    bytes: int = 0
    operations: int = 0


@dataclass(slots=True)
class _Sums:
    """The sums over steps of one kind; operators by label."""

    operators: dict[str, _OperatorSums] = field(default_factory=dict)
    steps: int = 0
    tokens: int = 0
    sampled: int = 0
    shared_keys: int = 0
    phases: dict[str, float] = field(default_factory=dict)


class StepProfiler(Laps):
    """Measures from its construction until `finish`. It costs a few clock reads per step, and two per operator.

    For an executable that is not Profiled it measures only the phases.
    """

    def __init__(
        self,
        executable: Executable,
        block_size: int,
        windows: Sequence[int | None] = (None,),
        clock: Callable[[], float] = time.perf_counter,
        recorder: StepRecorder | None = None,
    ) -> None:
        """`windows`: the sliding window of each group of caches; chunks are held as windows of their size. recorder:
        of each step, where a trace is wanted."""
        super().__init__()
        self._recorder = recorder
        profiled = executable if isinstance(executable, Profiled) else None
        self._profiled = profiled
        self._block_size = block_size
        self._clock = clock
        self._work = () if profiled is None else profiled.operator_work()
        held = {reach: reach.size if isinstance(reach, ChunkReach) else reach for reach in reaches_of(self._work)}
        # A model that runs whole prompts keeps no keys, so its windows are no group's.
        self._groups = {reach: windows.index(w) if w in windows else None for reach, w in held.items()}
        self._seconds = np.zeros(len(self._work))
        self._kinds: dict[StepKind, _Sums] = {}
        self._phases: dict[str, float] = {}
        self._counts: StepCounts | None = None
        self._shared_keys = 0
        self._is_ahead = False
        self._threads = _thread_seconds()
        self._started = self._last = clock()
        if profiled is not None:
            profiled.time_operators(self._seconds)

    def begin(self) -> None:
        super().begin()
        self.lap("between")

    def lap(self, phase: str) -> None:
        super().lap(phase)
        now = self._clock()
        if self._is_ahead:
            phase = "model"
        self._phases[phase] = self._phases.get(phase, 0.0) + now - self._last
        if self._recorder is not None:
            self._recorder.phase(phase, self._last, now)
        self._last = now

    def started(self) -> None:
        self.lap("report")
        self._is_ahead = True

    def given_up(self) -> None:
        self._is_ahead = False

    def ran(self, inputs: StepInputs) -> None:
        super().ran(inputs)
        self.lap("model")
        self._is_ahead = False
        self._shared_keys = 0 if self._profiled is None else self._profiled.shared_keys
        self._counts = count_step(inputs, self._block_size, self._groups)
        self._last = self._clock()  # the profiler's own work counts for no phase

    def end(self, plan: StepPlan) -> None:
        self.lap("commit")
        counts, self._counts = self._counts, None
        if counts is None:  # no row of it could run
            self._phases.clear()
            if self._recorder is not None:
                self._recorder.drop()
            return
        self._record(plan)
        sums = self._kinds.setdefault(_kind(plan), _Sums())
        sums.steps += 1
        sums.tokens += counts.tokens
        sums.sampled += counts.sampled
        sums.shared_keys += self._shared_keys
        for phase, seconds in self._phases.items():
            sums.phases[phase] = sums.phases.get(phase, 0.0) + seconds
        for each, seconds in zip(self._work, self._seconds.tolist(), strict=True):
            work = counts.work_of(each)
            operator = sums.operators.setdefault(work.label, _OperatorSums(work.unit))
            operator.seconds += seconds
            operator.bytes += counts.bytes_of(work)
            operator.operations += counts.operations_of(work)
        self._phases.clear()
        self._seconds[:] = 0
        if not self._is_ahead:
            self._last = self._clock()

    def _record(self, plan: StepPlan) -> None:
        if self._recorder is not None:
            self._recorder.rows((new.row, new.sequence_id) for new in plan.new_rows)
            operators = zip((each.label for each in self._work), self._seconds.tolist(), strict=True)
            chunks = ((chunk.row, chunk.length, chunk.is_decode) for chunk in plan.chunks)
            self._recorder.end(plan.step, _kind(plan), operators, chunks)

    def finish(self) -> EngineProfile:
        if self._profiled is not None:
            self._profiled.time_operators(None)
        threads = {name: seconds - self._threads.get(name, 0.0) for name, seconds in _thread_seconds().items()}
        return EngineProfile(
            seconds=self._clock() - self._started,
            kinds={kind: _summary(sums) for kind, sums in self._kinds.items()},
            threads=threads,
            trace=None if self._recorder is None else self._recorder.finish(),
        )


def _kind(plan: StepPlan) -> StepKind:
    decodes = sum(chunk.is_decode for chunk in plan.chunks)
    if decodes == len(plan.chunks):
        return "decode"
    return "mixed" if decodes else "prefill"


def _summary(sums: _Sums) -> StepsProfile:
    """Sums up one kind of steps, with the slowest operators first."""
    operators = [
        OperatorProfile(label=label, unit=each.unit, seconds=each.seconds, bytes=each.bytes, operations=each.operations)
        for label, each in sums.operators.items()
    ]
    operators.sort(key=lambda operator: -operator.seconds)
    return StepsProfile(
        steps=sums.steps,
        tokens=sums.tokens,
        sampled=sums.sampled,
        phases=sums.phases,
        operators=tuple(operators),
        shared_keys=sums.shared_keys,
    )


def _thread_seconds() -> dict[str, float]:
    """Returns CPU seconds by Python thread name (proc(5), schedstat); empty if the kernel does not report them."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    seconds: dict[str, float] = {}
    for task in Path("/proc/self/task").glob("*"):
        try:
            on_cpu = int((task / "schedstat").read_text().split()[0]) / 1e9
        except (OSError, IndexError, ValueError):
            continue  # it ended, or the kernel keeps no such figures
        name = names.get(int(task.name), "native")
        seconds[name] = seconds.get(name, 0.0) + on_cpu
    return seconds
