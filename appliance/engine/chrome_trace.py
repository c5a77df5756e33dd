"""A trace of steps as Chrome's trace events, which Perfetto and chrome://tracing open.

Source: "Trace Event Format" (Google, 2016): complete events (ph X), whose ts and dur are microseconds, and metadata
(ph M).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from appliance.engine.step_trace import StepTrace, TracedChunk, TracedPhase, TracedStep

_STEPS, _PHASES, _OPERATORS, _ROWS = 1, 2, 3, 10  # numbers of tracks; a row's is _ROWS and its own
_MICROSECONDS: Final = 1e6
_NOT_OF_THE_STEP: Final = "between"  # the time since the step before

Event = dict[str, Any]


def chrome_trace(name: str, engines: Sequence[StepTrace]) -> Mapping[str, Any]:
    """Returns the document, with a process for each engine: tracks of its steps, of their phases, of the model's
    operators, and of each sequence that runs. name: the deployment's."""
    events: list[Event] = []
    for number, trace in enumerate(engines):
        title = name if len(engines) == 1 else f"{name}, replica {number}"
        events += _named(number, title, trace)
        for step in trace.steps:
            events += _of_step(number, step)
        events += _of_operators(number, trace.steps)
    dropped = sum(trace.num_dropped for trace in engines)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"steps_left_out": dropped}}


def _named(pid: int, title: str, trace: StepTrace) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": title}}
    rows = sorted({chunk.row for step in trace.steps for chunk in step.chunks})
    tracks = {_STEPS: "steps", _PHASES: "phases", _OPERATORS: "operators"}
    tracks |= {_ROWS + row: f"sequences, row {row}" for row in rows}
    for tid, track in tracks.items():
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": track}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


def _own_phases(step: TracedStep) -> list[TracedPhase]:
    return [phase for phase in step.phases if phase.name != _NOT_OF_THE_STEP]


def _of_step(pid: int, step: TracedStep) -> Iterator[Event]:
    phases = _own_phases(step)
    if not phases:
        return
    began, ended = phases[0].began, phases[-1].ended
    num_tokens = sum(chunk.num_tokens for chunk in step.chunks)
    yield _event(pid, _STEPS, step.kind, began, ended, {"step": step.number, "tokens": num_tokens})
    for phase in phases:
        yield _event(pid, _PHASES, phase.name, phase.began, phase.ended)
    for chunk in step.chunks:
        yield _event(pid, _ROWS + chunk.row, "decode" if chunk.is_decode else "prompt", began, ended, _said(chunk))


def _of_operators(pid: int, steps: Sequence[TracedStep]) -> Iterator[Event]:
    """Each step's begin where its model began, or where those before end: the model of a step that began early ran
    beside the step before, and spans of one track must not overlap, as Perfetto then drops some."""
    at = -math.inf
    for step in steps:
        phases = _own_phases(step)
        if phases:
            at = max(at, next((phase.began for phase in phases if phase.name == "model"), phases[0].began))
            for label, seconds in step.operators:
                yield _event(pid, _OPERATORS, label, at, at + seconds)
                at += seconds


def _said(chunk: TracedChunk) -> dict[str, int]:
    known = {} if chunk.sequence is None else {"sequence": chunk.sequence}
    return {**known, "tokens": chunk.num_tokens}


def _event(pid: int, tid: int, name: str, began: float, ended: float, args: Mapping[str, int] | None = None) -> Event:
    at, end = round(began * _MICROSECONDS, 3), round(ended * _MICROSECONDS, 3)  # so that it ends where the next begins
    found: Event = {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": at, "dur": round(end - at, 3)}
    return found if args is None else {**found, "args": args}
