"""Engines that have the experts of a model among them, as threads of this process: each is given the messages of a
trace at moments of its own, and runs its part of the others' steps meanwhile."""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec

from appliance.engine.boot import boot
from appliance.engine.events import Events
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import EngineMessage, EngineStats, FinishReason, OutputBatch, UtilityRequest
from appliance.engine.replica import as_replica
from appliance.kernels.lockstep import Lockstep
from appliance.kernels.ranks import SharedMemory
from appliance.plan.types import EnginePlan
from appliance.program.shard_layout import Shard

CLIENT = b"trace"
TIMEOUT_S = 20.0  # of a wait for another replica
PATIENCE_S = 60.0  # for a whole trace
_NEVER = math.inf
Result = TypeVar("Result")


class Due(NamedTuple):
    """A message, and the number of the step before which an engine is given it."""

    at: int
    message: EngineMessage


@dataclass
class Answer:
    """What a client sees of one sequence, however it is cut into steps; log-probabilities in full, as text."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[str] = field(default_factory=list)
    prompt_logprobs: str = ""
    finish: FinishReason | None = None
    error: str | None = None

    def is_beginning_of(self, whole: "Answer") -> bool:
        """Returns whether the other one goes on as this one began."""
        count, entries = len(self.tokens), len(self.logprobs)
        return self.tokens == whole.tokens[:count] and self.logprobs == whole.logprobs[:entries]


Answers = dict[tuple[str, int], Answer]


def gather(events: Events, found: Answers) -> None:
    """Adds the outputs among events to the answers."""
    for _, event in events:
        for output in event.outputs if isinstance(event, OutputBatch) else ():
            answer = found.setdefault((output.request_id, output.index), Answer())
            answer.tokens += output.token_ids
            answer.logprobs += map(repr, output.logprobs or ())
            if output.prompt_logprobs is not None:
                answer.prompt_logprobs = repr(output.prompt_logprobs)
            if output.finish_reason is not None:
                answer.finish, answer.error = output.finish_reason, output.error


def be_patient(loop: EngineLoop) -> None:
    """Lets grammars take as long as a machine takes that does other things as well."""
    loop._grammars._budget_s = PATIENCE_S


class _Moments:
    """When each engine's next message is due: at its step, or at once where nobody has anything else to do before."""

    def __init__(self, count: int) -> None:
        self._count, self._lock, self._idle = count, threading.Lock(), dict[int, float]()

    def is_due(self, number: int, due: Due | None, step: int, *, has_work: bool) -> bool:
        """Says whether an engine that is at some step of its own gets its next message now. due: None: it has none."""
        at = _NEVER if due is None else due.at
        if at <= step:
            return True
        with self._lock:
            self._idle.pop(number, None)
            if not has_work:
                self._idle[number] = at
            first = min(self._idle, key=lambda each: (self._idle[each], each), default=None)
            return len(self._idle) == self._count and first == number and at < _NEVER

    @property
    def are_over(self) -> bool:
        with self._lock:
            return len(self._idle) == self._count and min(self._idle.values()) == _NEVER


class SpreadEngines:
    """As many engines as the plan has replicas, with one lockstep. After an exception none can be used."""

    def __init__(self, plan: EnginePlan) -> None:
        """Loads all of them. Raises what boot raises."""
        count = plan.parallel.replicas
        self._memory, self._wakes = SharedMemory(), [os.eventfd(0) for _ in range(count)]
        joins = (count, TIMEOUT_S, self._wakes)
        leads = Shard(0, plan.parallel.tensor)
        self._locksteps = [Lockstep(self._memory, number, *joins, shard=leads) for number in range(count)]
        self._threads, self.num_idle_steps = ThreadPoolExecutor(count), 0
        scheduler = msgspec.structs.replace(plan.scheduler, target_step_s=None)  # nobody reads a stream
        plan = msgspec.structs.replace(plan, scheduler=scheduler)

        there = set[int]()

        def load(number: int) -> EngineLoop:
            """Takes part in the others' steps, which check adapters, until all are there."""
            loop = boot(as_replica(plan, number), lambda phase: None, lockstep=self._locksteps[number])
            be_patient(loop)
            there.add(number)
            while len(there) < count:
                self._locksteps[number].ranks.check()
                loop.step() if loop.has_work else time.sleep(0.0005)
            return loop

        self._loops: list[EngineLoop] = []
        self._loops += self._all(load)

    def run(self, traces: Sequence[Sequence[Due]]) -> list[Answers]:
        """Gives each engine the messages of its trace, and runs all until nothing is left to do."""
        moments, deadline = _Moments(len(self._loops)), time.monotonic() + PATIENCE_S

        def run(number: int) -> Answers:
            loop, waiting, found, step = self._loops[number], deque(traces[number]), Answers(), 0
            while not moments.are_over:
                assert time.monotonic() < deadline, f"replica {number} is at step {step}, and {len(waiting)} wait"
                has_work = loop.has_work
                if moments.is_due(number, waiting[0] if waiting else None, step, has_work=has_work):
                    gather(loop.handle(CLIENT, waiting.popleft().message), found)
                elif has_work:
                    self.num_idle_steps += not loop._scheduler.has_work
                    gather(loop.step(), found)
                    step += 1
                else:
                    time.sleep(0.0005)
            return found

        return self._all(run)

    def all_handle(self, message: EngineMessage) -> None:
        """Gives every engine a message that nothing answers."""
        for loop in self._loops:
            loop.handle(CLIENT, message)

    @property
    def stats(self) -> list[EngineStats]:
        """Those of each engine."""
        asked = [loop.handle(CLIENT, UtilityRequest(call_id="", method="stats")) for loop in self._loops]
        return [msgspec.msgpack.decode(events[0][1].value, type=EngineStats) for events in asked]  # type: ignore[union-attr] # a UtilityResult

    def close(self) -> None:
        for loop in self._loops:
            loop.close()
        self._threads.shutdown()
        self._memory.close()
        for each in self._wakes:
            os.close(each)

    def _all(self, call: Callable[[int], Result]) -> list[Result]:
        """Calls a function for each engine, each in a thread; when one fails, the waits of the others end."""

        def run(number: int) -> Result:
            try:
                return call(number)
            except BaseException:
                self._locksteps[number].fail()
                raise

        jobs = [self._threads.submit(run, number) for number in range(len(self._locksteps))]
        failures: list[Any] = [error for job in jobs if (error := job.exception()) is not None]
        if failures:
            raise ExceptionGroup("replicas failed", failures)
        return [job.result() for job in jobs]
