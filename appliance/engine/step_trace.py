"""A trace of steps, as values: when each phase and operator ran, and for which sequences."""

from collections.abc import Iterable

import msgspec

MOST_EVENTS = 200_000  # of one trace; later steps are counted only


class TracedPhase(msgspec.Struct, frozen=True, array_like=True):
    """Times are seconds of the machine's monotonic clock, which all processes of it share."""

    name: str
    began: float
    ended: float


class TracedChunk(msgspec.Struct, frozen=True, array_like=True):
    """What a step ran of a sequence. sequence: None if it began before the trace."""

    row: int
    sequence: int | None
    num_tokens: int
    is_decode: bool


class TracedStep(msgspec.Struct, frozen=True, array_like=True):
    """operators: their seconds, in the order in which they ran."""

    number: int
    kind: str
    phases: tuple[TracedPhase, ...]
    operators: tuple[tuple[str, float], ...]
    chunks: tuple[TracedChunk, ...]

    @property
    def num_events(self) -> int:
        return 1 + len(self.phases) + len(self.operators) + len(self.chunks)


class StepTrace(msgspec.Struct, frozen=True):
    """num_dropped: steps that came after the trace was full."""

    steps: tuple[TracedStep, ...]
    num_dropped: int = 0


class StepRecorder:
    """Keeps what the profiler sees of each step, until MOST_EVENTS are kept."""

    def __init__(self, most_events: int = MOST_EVENTS) -> None:
        self._room = most_events
        self._steps: list[TracedStep] = []
        self._num_dropped = 0
        self._phases: list[TracedPhase] = []
        self._sequences: dict[int, int] = {}  # by row

    def phase(self, name: str, began: float, ended: float) -> None:
        """Keeps a phase of the step that runs; several of one name in a row are one."""
        last = self._phases[-1] if self._phases else None
        if last is not None and last.name == name and last.ended == began:
            self._phases[-1] = TracedPhase(name, last.began, ended)
        else:
            self._phases.append(TracedPhase(name, began, ended))

    def rows(self, taken: Iterable[tuple[int, int]]) -> None:
        """Learns which sequences take which rows."""
        self._sequences.update(taken)

    def end(
        self,
        number: int,
        kind: str,
        operators: Iterable[tuple[str, float]],
        chunks: Iterable[tuple[int, int, bool]],
    ) -> None:
        """Ends a step. chunks: (row, tokens, is_decode)."""
        phases, self._phases = tuple(self._phases), []
        step = TracedStep(
            number,
            kind,
            phases,
            tuple((label, seconds) for label, seconds in operators if seconds > 0),
            tuple(TracedChunk(row, self._sequences.get(row), count, decodes) for row, count, decodes in chunks),
        )
        if self._num_dropped or step.num_events > self._room:
            self._num_dropped += 1
        else:
            self._room -= step.num_events
            self._steps.append(step)

    def drop(self) -> None:
        """Forgets a step of which nothing ran."""
        self._phases = []

    def finish(self) -> StepTrace:
        return StepTrace(tuple(self._steps), self._num_dropped)
