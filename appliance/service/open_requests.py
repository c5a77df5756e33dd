"""The requests that are open in the engine: their text, streams, times and counts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from appliance.base.log import fields, logger
from appliance.engine.messages import EngineStats, ErrorKind, SequenceOutput
from appliance.engine.time_messages import RequestTimes
from appliance.service.calls import Abort
from appliance.service.engine_metrics import EngineMetrics
from appliance.service.errors import RequestFailedError
from appliance.service.neighbours import Neighbours
from appliance.service.outlook import Outlook
from appliance.service.policy import Meter
from appliance.service.record import RequestRecord
from appliance.service.requests import TextRequest
from appliance.service.sequence_text import SequenceText
from appliance.service.streams import OutputStream, Turns
from appliance.service.text_side import TextSide
from appliance.text.stop_strings import StopStrings

_log = logger("service")


@dataclass(slots=True)
class RequestGroup:
    """Requests that share a stream and end together, also where several engines have them."""

    stream: OutputStream
    num_unfinished: int
    meter: Meter
    keys: "dict[OpenRequests, list[str]]" = field(default_factory=dict)

    def end(self, reason: str) -> None:
        """Ends what is still open of it, here and in the engines."""
        still_open = {of: of.close(keys, reason) for of, keys in self.keys.items()}
        if any(still_open.values()):
            self.meter.close(reason)
        for of, keys in still_open.items():
            if keys:
                of.abort(keys)


@dataclass(slots=True)
class _OpenRequest:
    group: RequestGroup
    sequences: Sequence[SequenceText]
    record: RequestRecord
    num_unfinished: int
    first_index: int


class OpenRequests:
    """Turns the outputs of the engine into outputs of streams, and ends what is complete or has failed."""

    def __init__(
        self,
        max_num_seqs: int,
        metrics: EngineMetrics | None,
        clock: Callable[[], float],
        neighbours: Neighbours | None,
        abort: Abort,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._neighbours = neighbours
        self.abort = abort
        self._open: dict[str, _OpenRequest] = {}
        self._untimed: dict[str, Meter] = {}  # of requests whose times the engine has not sent yet
        self._outlook = Outlook(max_num_seqs)
        self._turns = Turns()
        self.num_sequences = 0

    @property
    def num_requests(self) -> int:
        return len(self._open)

    @property
    def num_new_tokens(self) -> int:
        """Prompt tokens that wait for a first token, and that the engine is not expected to have cached."""
        return self._outlook.num_new

    def use_max_num_seqs(self, max_num_seqs: int) -> None:
        """The engine that runs from now on takes as many sequences at once."""
        self._outlook.use_max_num_seqs(max_num_seqs)

    def wait_s(self, stats: EngineStats | None) -> float:
        """Predicts how long the prompt of a request that comes now would wait (see Outlook)."""
        num_open, num_ahead = self._neighbours.others() if self._neighbours else (0, 0)
        return self._outlook.wait_s(self.num_sequences + num_open, stats, num_ahead)

    def begin(self, num_requests: int, meter: Meter) -> RequestGroup:
        """Returns a group for as many requests, with the stream of their outputs."""
        stream = OutputStream(lambda: group.end("abort"), self._turns)
        group = RequestGroup(stream, num_requests, meter)
        return group

    def add(
        self, key: str, request: TextRequest, text: TextSide, group: RequestGroup, first_index: int, num_known: int = 0
    ) -> None:
        """Opens a request of the group. Its sequence i has the index `first_index` + i in the stream. num_known: tokens
        at the prompt's beginning that the engine is expected to have cached."""
        sampling, num_prompt_tokens = request.sampling, len(request.prompt_token_ids)
        stops = StopStrings(request.text.stop) if request.text.stop else None
        sequences = [SequenceText(text, request, stops) for _ in range(sampling.n)]
        record = RequestRecord(self._clock(), num_prompt_tokens, sampling.n, sampling.max_tokens, request.adapter)
        self._open[key] = _OpenRequest(group, sequences, record, sampling.n, first_index)
        group.keys.setdefault(self, []).append(key)
        self._untimed[key] = group.meter
        self._outlook.opened(key, num_prompt_tokens, num_known)
        self.num_sequences += sampling.n
        self._tell_neighbours()

    def advance(self, output: SequenceOutput) -> None:
        """Takes an output of the engine. One of a request that has ended here already is ignored."""
        opened = self._open.get(output.request_id)
        if output.times is not None or output.error is not None:
            self._timed(output.request_id, output.times)
        if opened is None:
            return
        if output.error is not None:
            kind = output.error_kind or ErrorKind.INTERNAL
            self._fail(opened, RequestFailedError(kind, output.error, output.error_field))
            return
        sequence = opened.sequences[output.index]
        if sequence.finished:
            return
        try:
            shown = sequence.advance(output)
        except Exception:  # noqa: BLE001 - of a tokenizer of the operator's own; the requests beside this one go on
            _log.exception("a request's tokens could not be made text", extra=fields(request=output.request_id))
            message = "its tokens could not be made text; the server's log says why"
            self._fail(opened, RequestFailedError(ErrorKind.INTERNAL, message))
            return
        if opened.record.advance(self._metrics, self._clock(), output.index, len(shown.token_ids)):
            self._outlook.answered(output.request_id)
            self._tell_neighbours()
        shown.index += opened.first_index
        opened.group.meter.add(shown)
        opened.group.stream.put(shown)
        if sequence.finished:
            if output.finish_reason is None:  # a stop string ended it here, and the engine still goes on
                self.abort([output.request_id], output.index)
            opened.num_unfinished -= 1
            if opened.num_unfinished == 0:
                self._complete(output.request_id, opened.group, shown.finish_reason or "stop")

    def fail_all(self, reason: str) -> None:
        """Fails every open request."""
        for opened in list(self._open.values()):
            self._fail(opened, RequestFailedError(ErrorKind.UNAVAILABLE, reason))
        for key in list(self._untimed):
            self._timed(key, None)

    def _timed(self, key: str, times: RequestTimes | None) -> None:
        if times is not None and self._metrics:
            self._metrics.phases(times)
        if (meter := self._untimed.pop(key, None)) is not None:
            meter.timed(times)

    def _complete(self, key: str, group: RequestGroup, reason: str) -> None:
        self._close(key, reason)
        group.num_unfinished -= 1
        if group.num_unfinished == 0:
            group.meter.close(reason)
            group.stream.complete()

    def _fail(self, opened: _OpenRequest, failure: RequestFailedError) -> None:
        opened.group.stream.fail(failure)
        opened.group.end("error")

    def close(self, keys: Sequence[str], reason: str) -> list[str]:
        """Closes those of the requests that are open here still, and returns them."""
        still_open = [key for key in keys if key in self._open]
        for key in still_open:
            self._close(key, reason)
        return still_open

    def _close(self, key: str, reason: str) -> None:
        opened, now = self._open.pop(key), self._clock()
        self._outlook.answered(key)
        self._outlook.ended(len(opened.sequences), self.num_sequences, now)
        self.num_sequences -= len(opened.sequences)
        self._tell_neighbours()
        opened.record.finish(self._metrics, now, reason)

    def _tell_neighbours(self) -> None:
        if self._neighbours is not None:
            self._neighbours.note(self.num_sequences, self._outlook.num_ahead)
