"""The engine as the front ends see it: tokenized requests in, streams of text out."""

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

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
    SequenceOutput,
    UtilityRequest,
    UtilityResult,
)
from appliance.service.errors import RequestFailedError
from appliance.service.link import EngineLink
from appliance.service.metrics import RequestRecord, ServiceMetrics
from appliance.service.requests import TextRequest
from appliance.service.sequence_text import SequenceText
from appliance.service.streams import OutputStream
from appliance.text.stop_strings import StopStrings
from appliance.text.tokenizer import Tokenizer

_log = logger("service")


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How much may be open at once. max_waiting None: no limit."""

    max_num_seqs: int
    max_waiting: int | None


@dataclass(slots=True)
class _OpenRequest:
    stream: OutputStream
    sequences: list[SequenceText]
    record: RequestRecord
    num_unfinished: int


class EngineClient:
    """Belongs to one event loop. Whoever watches the engine attaches the link and clears `closed_reason`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        eos_token_ids: tuple[int, ...],
        limits: AdmissionLimits,
        metrics: ServiceMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tokenizer = tokenizer
        self.stats: EngineStats | None = None
        self.closed_reason: str | None = "the engine is starting"  # None while requests are taken
        self._eos_token_ids = eos_token_ids
        self._eos_set = frozenset(eos_token_ids)
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._link: EngineLink | None = None
        self._open: dict[str, _OpenRequest] = {}
        self._calls: dict[str, asyncio.Future[msgspec.Raw]] = {}
        self._ids = itertools.count()
        self.num_open_sequences = 0

    @property
    def num_open_requests(self) -> int:
        return len(self._open)

    def attach(self, link: EngineLink | None) -> None:
        self._link = link

    def check_admission(self, num_sequences: int) -> None:
        """Raises RequestFailedError (unavailable, overloaded) when so many more sequences cannot be taken now."""
        if self.closed_reason is not None:
            raise RequestFailedError(ErrorKind.UNAVAILABLE, self.closed_reason)
        most = self._limits.max_waiting
        waiting = self.num_open_sequences - self._limits.max_num_seqs
        if most is not None and waiting >= most and self.num_open_sequences:
            raise RequestFailedError(
                ErrorKind.OVERLOADED, f"{waiting} sequences wait already; {most} may. Try again later."
            )

    def generate(self, request: TextRequest) -> OutputStream:
        """Starts a request. Raises RequestFailedError when it is not admitted; later failures come from the stream."""
        num_sequences = request.sampling.n
        self.check_admission(num_sequences)
        assert self._link is not None
        key = format(next(self._ids), "x")
        stream = OutputStream(lambda: self._abandon(key))
        stops = StopStrings(request.text.stop) if request.text.stop else None
        sequences = [self._sequence(request, stops) for _ in range(num_sequences)]
        record = RequestRecord(
            self._clock(), len(request.prompt_token_ids), request.sampling.n, request.sampling.max_tokens
        )
        self._open[key] = _OpenRequest(stream, sequences, record, num_sequences)
        self.num_open_sequences += num_sequences
        self._link.send(
            GenerateRequest(
                request_id=key,
                prompt_token_ids=request.prompt_token_ids,
                sampling=request.sampling,
                eos_token_ids=self._eos_token_ids,
                priority=request.priority,
                cache_salt=request.cache_salt,
                arrival_time=time.time(),
            )
        )
        return stream

    async def call(self, method: str) -> msgspec.Raw:
        """A utility call (see UtilityRequest). Raises RequestFailedError when the engine is gone or refuses."""
        if self._link is None:
            raise RequestFailedError(ErrorKind.UNAVAILABLE, self.closed_reason or "there is no engine")
        call_id = format(next(self._ids), "x")
        answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = answer
        self._link.send(msgspec.convert({"call_id": call_id, "method": method, "type": "utility"}, UtilityRequest))
        try:
            return await answer
        finally:
            self._calls.pop(call_id, None)

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
        for key in list(self._open):
            self._fail(key, RequestFailedError(ErrorKind.UNAVAILABLE, reason))
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(RequestFailedError(ErrorKind.UNAVAILABLE, reason))
        self.stats = None
        if self._metrics:
            self._metrics.engine_gone()

    def _sequence(self, request: TextRequest, stops: StopStrings | None) -> SequenceText:
        prompt, min_tokens = request.prompt_token_ids, request.sampling.min_tokens
        return SequenceText(self.tokenizer, prompt, request.text, stops, min_tokens, self._eos_set)

    def _advance(self, output: SequenceOutput) -> None:
        opened = self._open.get(output.request_id)
        if opened is None:
            return  # ended here already; the engine has not heard yet
        if output.error is not None:
            kind = output.error_kind or ErrorKind.INTERNAL
            self._fail(output.request_id, RequestFailedError(kind, output.error, output.error_field))
            return
        sequence = opened.sequences[output.index]
        if sequence.finished:
            return
        shown = sequence.advance(output)
        opened.record.advance(self._metrics, self._clock(), len(shown.token_ids))
        opened.stream.put(shown)
        if sequence.finished:
            self._sequence_ended(output, opened, shown.finish_reason or "stop")

    def _sequence_ended(self, output: SequenceOutput, opened: _OpenRequest, reason: str) -> None:
        opened.num_unfinished -= 1
        if opened.num_unfinished == 0:
            self._close(output.request_id, reason)
            opened.stream.complete()
        if output.finish_reason is None and opened.num_unfinished == 0:
            self._send_abort(output.request_id)

    def _fail(self, key: str, failure: RequestFailedError) -> None:
        opened = self._open[key]
        self._close(key, "error")
        opened.stream.fail(failure)

    def _abandon(self, key: str) -> None:
        """The reader went away."""
        if key in self._open:
            self._close(key, "abort")
            self._send_abort(key)

    def _close(self, key: str, reason: str) -> None:
        opened = self._open.pop(key)
        self.num_open_sequences -= len(opened.sequences)
        opened.record.finish(self._metrics, self._clock(), reason)

    def _send_abort(self, key: str) -> None:
        if self._link is not None:
            self._link.send(AbortRequest([key]))

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
