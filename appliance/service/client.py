"""The engine as the front ends see it: tokenized requests in, streams of text out."""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import msgspec

from appliance.base.log import fields, logger
from appliance.engine.messages import (
    AbortRequest,
    BadMessage,
    EngineEvent,
    EngineStats,
    ErrorKind,
    GenerateRequest,
    OutputBatch,
    RequestTimes,
    SamplingParams,
    SequenceOutput,
    UtilityMethod,
    UtilityRequest,
    UtilityResult,
)
from appliance.plan.types import SchedulerPlan
from appliance.service.errors import RequestFailedError
from appliance.service.intake import STARTING
from appliance.service.link import EngineLink
from appliance.service.metrics import ServiceMetrics
from appliance.service.neighbours import Neighbours
from appliance.service.outlook import Outlook
from appliance.service.policy import Meter, OpenPolicy, RequestPolicy
from appliance.service.record import RequestRecord
from appliance.service.requests import TextRequest
from appliance.service.sequence_text import SequenceText
from appliance.service.streams import OutputStream, Turns
from appliance.service.text_side import TextSide
from appliance.text.stop_strings import StopStrings

_log = logger("service")
_PROBE = "probe-"  # begins the ids of probes, which no request's does


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How much may be open at once. max_waiting None: no limit."""

    max_num_seqs: int
    max_waiting: int | None

    @classmethod
    def of(cls, plan: SchedulerPlan) -> Self:
        return cls(plan.max_num_seqs, plan.max_waiting)


@dataclass(slots=True)
class _Group:
    """Requests that share a stream."""

    num_unfinished: int
    meter: Meter
    keys: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _OpenRequest:
    stream: OutputStream
    group: _Group
    sequences: list[SequenceText]
    record: RequestRecord
    num_unfinished: int
    first_index: int


class EngineClient:
    """Belongs to one event loop. What watches the engine attaches the link and opens `intake`."""

    def __init__(
        self,
        limits: AdmissionLimits,
        metrics: ServiceMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        policy: RequestPolicy | None = None,
    ) -> None:
        self.stats: EngineStats | None = None
        self.intake = STARTING
        self._text: TextSide | None = None
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self.policy = policy or OpenPolicy()
        self._link: EngineLink | None = None
        self.introduces_vocabulary = False  # to an engine at its start, not only before its first constraint
        self._knows_vocabulary = False  # the engine behind the link
        self._open: dict[str, _OpenRequest] = {}
        self._untimed: dict[str, Meter] = {}  # of requests of which the engine has not told its times yet
        self._calls: dict[str, asyncio.Future[msgspec.Raw]] = {}
        self._probes: dict[str, asyncio.Future[None]] = {}
        self._ids = itertools.count()
        self._turns = Turns()
        self.neighbours: Neighbours | None = None  # other clients of the same engine
        self._outlook = Outlook(limits.max_num_seqs)
        self.num_open_sequences = 0

    @property
    def num_open_requests(self) -> int:
        return len(self._open)

    @property
    def text(self) -> TextSide:
        """What `use_text` was given."""
        assert self._text is not None
        return self._text

    def use_text(self, text: TextSide) -> None:
        """Needed before the first `generate`; not in the constructor, for an engine may load while a tokenizer does."""
        self._text = text
        if self.introduces_vocabulary:
            self._introduce_vocabulary()

    def use_limits(self, limits: AdmissionLimits) -> None:
        """For requests from now on. max_num_seqs is the engine's, and stays."""
        self._limits = limits

    def attach(self, link: EngineLink | None) -> None:
        self._link = link
        self._knows_vocabulary = False
        if self.introduces_vocabulary:
            self._introduce_vocabulary()

    def check_admission(self) -> None:
        """Raises RequestFailedError (unavailable, overloaded) when nothing more can be taken now."""
        if not self.intake.is_open:
            raise self.intake.refusal()
        most = self._limits.max_waiting
        waiting = self.num_open_sequences - self._limits.max_num_seqs
        if most is not None and waiting >= most and self.num_open_sequences:
            reason = f"{waiting} sequences wait already, {most} may; try again later"
            raise RequestFailedError(ErrorKind.OVERLOADED, reason)

    def predicted_wait_s(self) -> float:
        """How long the prompt of a request that comes now would wait (see Outlook)."""
        num_open, num_ahead = self.neighbours.others() if self.neighbours else (0, 0)
        return self._outlook.wait_s(self.num_open_sequences + num_open, self.stats, num_ahead)

    def note_shed(self) -> None:
        """A policy refused a request for what it would have waited."""
        if self._metrics:
            self._metrics.shed()

    def generate(self, *requests: TextRequest, is_streamed: bool = True, meter: Meter | None = None) -> OutputStream:
        """Starts requests whose outputs come in one stream; sequence j of request i has the index i * n + j.

        `is_streamed`: somebody reads the tokens as they come, and the engine keeps its steps short for them.
        `meter`: of requests that the policy has admitted already.

        They end together: one that fails ends the others. Raises RequestFailedError when they are not admitted; later
        failures come from the stream.
        """
        self.check_admission()
        admitted: Sequence[TextRequest] = requests
        if meter is None:
            admitted, meter = self.policy.admit(requests)
        group = _Group(len(admitted), meter)
        stream = OutputStream(lambda: self._end_group(group, "abort"), self._turns)
        first_index = 0
        for request in admitted:
            self._start(request, stream, group, first_index, is_streamed=is_streamed)
            first_index += request.sampling.n
        return stream

    async def call(self, method: UtilityMethod) -> msgspec.Raw:
        """A utility call (see UtilityRequest). Raises RequestFailedError when the engine is gone or refuses."""
        if self._link is None:
            raise self.intake.refusal()
        call_id = format(next(self._ids), "x")
        answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = answer
        self._link.send(UtilityRequest(call_id=call_id, method=method))
        try:
            return await answer
        finally:
            self._calls.pop(call_id, None)

    async def probe(self) -> None:
        """One token through the scheduler, past every limit of ours and into no figure of requests.

        Raises RequestFailedError when the engine is gone or fails it. A caller that is cancelled ends it in the engine.
        """
        if self._link is None:
            raise self.intake.refusal()
        key = f"{_PROBE}{next(self._ids):x}"
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._probes[key] = answer
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        self._link.send(GenerateRequest(request_id=key, prompt_token_ids=[0], sampling=sampling))
        try:
            await answer
        finally:
            del self._probes[key]
            if answer.cancelled():
                self._send_abort([key])

    def on_event(self, event: EngineEvent) -> None:
        """Takes what concerns requests and calls; other events are the watcher's."""
        match event:
            case OutputBatch():
                if event.stats is not None:
                    self._note(event.stats)
                for output in event.outputs:
                    self._advance(output)
            case UtilityResult():
                self._answer(event)
            case BadMessage():
                _log.error("the engine could not read a message", extra=fields(reason=event.error))
            case _:
                return

    def fail_all(self, reason: str) -> None:
        """Fails every open request and call: the engine is gone."""
        self.attach(None)
        for opened in list(self._open.values()):
            self._fail(opened, RequestFailedError(ErrorKind.UNAVAILABLE, reason))
        for key in list(self._untimed):
            self._timed(key, None)
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(RequestFailedError(ErrorKind.UNAVAILABLE, reason))
        for probe in self._probes.values():
            if not probe.done():
                probe.set_exception(RequestFailedError(ErrorKind.UNAVAILABLE, reason))
        self.stats = None
        if self._metrics:
            self._metrics.engine_gone()

    def _introduce_vocabulary(self) -> None:
        """Once for each engine, when there is one and its text side."""
        if self._link is not None and self._text is not None and not self._knows_vocabulary:
            self._knows_vocabulary = True
            self._link.send(self._text.vocabulary())

    def _start(
        self, request: TextRequest, stream: OutputStream, group: _Group, first_index: int, *, is_streamed: bool
    ) -> None:
        assert self._link is not None
        assert self._text is not None
        sampling, key = request.sampling, format(next(self._ids), "x")
        stops = StopStrings(request.text.stop) if request.text.stop else None
        sequences = [SequenceText(self._text, request, stops) for _ in range(sampling.n)]
        record = RequestRecord(self._clock(), len(request.prompt_token_ids), sampling.n, sampling.max_tokens)
        self._open[key] = _OpenRequest(stream, group, sequences, record, sampling.n, first_index)
        group.keys.append(key)
        self._untimed[key] = group.meter
        self._outlook.opened(key, len(request.prompt_token_ids))
        self.num_open_sequences += sampling.n
        self._tell_neighbours()
        if request.constraint is not None:
            self._introduce_vocabulary()
        self._link.send(
            GenerateRequest(
                request_id=key,
                prompt_token_ids=request.prompt_token_ids,
                sampling=sampling,
                constraint=request.constraint,
                eos_token_ids=self._text.eos_token_ids,
                priority=request.priority,
                cache_salt=request.cache_salt,
                arrival_time=time.time(),
                is_streamed=is_streamed,
            )
        )

    def _advance(self, output: SequenceOutput) -> None:
        opened = self._open.get(output.request_id)
        if opened is None and output.request_id.startswith(_PROBE):
            self._probed(output)
            return
        if output.times is not None or output.error is not None:
            self._timed(output.request_id, output.times)
        if opened is None:
            return  # ended here already; the engine has not heard yet
        if output.error is not None:
            kind = output.error_kind or ErrorKind.INTERNAL
            self._fail(opened, RequestFailedError(kind, output.error, output.error_field))
            return
        sequence = opened.sequences[output.index]
        if sequence.finished:
            return
        shown = sequence.advance(output)
        if opened.record.advance(self._metrics, self._clock(), output.index, len(shown.token_ids)):
            self._outlook.answered(output.request_id)
            self._tell_neighbours()
        shown.index += opened.first_index
        opened.group.meter.add(shown)
        opened.stream.put(shown)
        if sequence.finished:
            if output.finish_reason is None:  # a stop string ended it here, and the engine still goes on
                self._send_abort([output.request_id], output.index)
            opened.num_unfinished -= 1
            if opened.num_unfinished == 0:
                self._request_ended(output, opened, shown.finish_reason or "stop")

    def _timed(self, key: str, times: RequestTimes | None) -> None:
        if times is not None and self._metrics:
            self._metrics.phases(times)
        if (meter := self._untimed.pop(key, None)) is not None:
            meter.timed(times)

    def _probed(self, output: SequenceOutput) -> None:
        answer = self._probes.get(output.request_id)
        if answer is None or answer.done():
            return
        if output.error is not None:
            answer.set_exception(RequestFailedError(output.error_kind or ErrorKind.INTERNAL, output.error))
        else:
            answer.set_result(None)

    def _request_ended(self, output: SequenceOutput, opened: _OpenRequest, reason: str) -> None:
        self._close(output.request_id, reason)
        opened.group.num_unfinished -= 1
        if opened.group.num_unfinished == 0:
            opened.group.meter.close(reason)
            opened.stream.complete()

    def _fail(self, opened: _OpenRequest, failure: RequestFailedError) -> None:
        opened.stream.fail(failure)
        self._end_group(opened.group, "error")

    def _end_group(self, group: _Group, reason: str) -> None:
        """Ends what is still open of a group, here and in the engine."""
        still_open = [key for key in group.keys if key in self._open]
        for key in still_open:
            self._close(key, reason)
        if still_open:
            group.meter.close(reason)
        self._send_abort(still_open)

    def _close(self, key: str, reason: str) -> None:
        opened, now = self._open.pop(key), self._clock()
        self._outlook.answered(key)
        self._outlook.ended(len(opened.sequences), self.num_open_sequences, now)
        self.num_open_sequences -= len(opened.sequences)
        self._tell_neighbours()
        opened.record.finish(self._metrics, now, reason)

    def _tell_neighbours(self) -> None:
        if self.neighbours is not None:
            self.neighbours.note(self.num_open_sequences, self._outlook.num_ahead)

    def _send_abort(self, keys: list[str], index: int | None = None) -> None:
        if self._link is not None and keys:
            self._link.send(AbortRequest(keys, index))

    def _note(self, stats: EngineStats) -> None:
        self.stats = stats
        if self._metrics:
            self._metrics.note(stats)

    def _answer(self, result: UtilityResult) -> None:
        answer = self._calls.get(result.call_id)
        if answer is None or answer.done():
            return
        if result.error is not None:
            answer.set_exception(RequestFailedError(ErrorKind.INTERNAL, result.error))
        else:
            answer.set_result(result.value)
