"""Runs the lines of a batch file that the output does not have yet."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from appliance.base.errors import ApplianceError
from appliance.jobs.answerer import Answerer
from appliance.jobs.answering import answer_line
from appliance.jobs.lines import BatchRequest, InputLine, LineError, parse, read_lines
from appliance.jobs.output import ErrorCopies, GroupCommit, OutputFile, OutputLine
from appliance.jobs.progress import BatchProgress

_HELD_PER_SLOT = 8  # answers that may wait for an earlier line, for each request in flight

Tick = Callable[[BatchProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFiles:
    input: Path
    output: Path
    errors: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    order: Literal["input", "completion"] = "input"
    resume: bool = True
    max_concurrency: int = 16


@dataclass(frozen=True, slots=True)
class _Job:
    """A line that is not in the output: a request, or the reason why it is none."""

    line: InputLine
    request: BatchRequest | LineError


async def run_batch(files: BatchFiles, options: BatchOptions, answer: Answerer, tick: Tick) -> BatchProgress:
    """Answers every line of the input exactly once, over all runs; `tick` hears of every line.

    The output is the only memory between runs. Raises BatchStoppedError when the engine is gone, ApplianceError when a
    file cannot be used or the output belongs to another input.
    """
    if not files.input.is_file():
        raise ApplianceError(f"there is no input file {files.input}")
    output = OutputFile(files.output, resume=options.resume)
    errors = ErrorCopies(files.errors)
    try:
        progress, done = _look_back(files, output, errors)
        tick(progress)
        commit = GroupCommit(output)
        try:
            await _Run(options, answer, progress, tick, commit, errors).drive(_jobs(files.input, done))
        finally:
            await commit.close()
    finally:
        errors.close()
        output.close()
    return progress


def _look_back(files: BatchFiles, output: OutputFile, errors: ErrorCopies) -> tuple[BatchProgress, dict[int, str]]:
    """What earlier runs did: counts, and the keys of answered lines by number."""
    done: dict[int, str] = {}
    failed = 0
    for line in output.read_done():
        done[_number_of(line, files.output)] = line.id
        failed += line.error is not None
        errors.add(line)
    total = sum(1 for _ in read_lines(files.input))
    return BatchProgress(total=total, resumed=len(done), done=len(done), failed=failed), done


def _number_of(line: OutputLine, path: Path) -> int:
    try:
        return int(line.id.split("_")[2])
    except (IndexError, ValueError):
        raise ApplianceError(
            f"{path} was not written by `appliance batch`: id {line.id!r}", hint="choose another output file"
        ) from None


def _jobs(path: Path, done: dict[int, str]) -> Iterator[_Job]:
    """Lines to run, in order. Answered lines are read as well: their ids count for duplicates."""
    seen: set[str] = set()
    for line in read_lines(path):
        if (key := done.get(line.number)) is not None and key != line.key:
            raise ApplianceError(
                f"{path}:{line.number}: not the line that the output answers", hint="choose another output file"
            )
        request = _parsed(line, seen)
        if key is None:
            yield _Job(line, request)


def _parsed(line: InputLine, seen: set[str]) -> BatchRequest | LineError:
    try:
        request = parse(line)
    except LineError as error:
        return error
    if request.custom_id in seen:
        message = f"custom_id {request.custom_id!r} stands on an earlier line"
        return LineError("duplicate_custom_id", message, request.custom_id)
    seen.add(request.custom_id)
    return request


class _Run:
    """A bounded window over the jobs. In input order, answers wait until every earlier line has one."""

    def __init__(
        self,
        options: BatchOptions,
        answer: Answerer,
        progress: BatchProgress,
        tick: Tick,
        commit: GroupCommit,
        errors: ErrorCopies,
    ) -> None:
        self._in_order = options.order == "input"
        self._num_slots = options.max_concurrency
        self._answer = answer
        self._progress = progress
        self._tick = tick
        self._commit = commit
        self._errors = errors
        self._running: set[asyncio.Task[OutputLine]] = set()
        self._queue: deque[asyncio.Task[OutputLine]] = deque()  # started and not written, oldest first

    async def drive(self, jobs: Iterator[_Job]) -> None:
        try:
            for job in jobs:
                while len(self._running) >= self._num_slots or len(self._queue) >= self._num_slots * _HELD_PER_SLOT:
                    await self._advance()
                task = asyncio.create_task(self._do(job))
                self._running.add(task)
                self._queue.append(task)
            while self._queue:
                await self._advance()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _advance(self) -> None:
        """Waits until something is answered, and writes what may be written."""
        ended, self._running = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        if self._in_order:
            while self._queue and self._queue[0].done():
                self._write(self._queue.popleft().result())
        else:
            for task in ended:
                self._queue.remove(task)
                self._write(task.result())
        for task in ended:
            if task.exception() is not None:
                task.result()  # a failure ends the run, even when earlier lines are still open
        if self._commit.failure is not None:
            raise self._commit.failure

    def _write(self, line: OutputLine) -> None:
        self._commit.put(msgspec.json.encode(line) + b"\n")
        self._errors.add(line)
        self._progress.done += 1
        self._progress.failed += line.error is not None
        self._tick(self._progress)

    async def _do(self, job: _Job) -> OutputLine:
        answered = await answer_line(job.line, job.request, self._answer)
        self._progress.prompt_tokens += answered.prompt_tokens
        self._progress.completion_tokens += answered.completion_tokens
        return answered.line
