"""What answers of both generation APIs have in common: identity, usage, and events made from prepared bytes."""

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from appliance.engine.messages import DraftCounts
from appliance.requests.errors import ApiError
from appliance.requests.fields import GenerationFields
from appliance.service.requests import TextOutput

DONE = b"data: [DONE]\n\n"


class Answer(Protocol):
    """One API's way to write outputs, whole or as server-sent events. Used for one of the two."""

    tally: "Tally"

    def opening(self) -> bytes:
        """Events before the first output."""

    def event(self, output: TextOutput) -> bytes:
        """The events of one output; empty when there is nothing to show yet."""

    def add(self, output: TextOutput) -> None:
        """Takes an output for `body`."""

    def body(self) -> bytes:
        """The whole answer."""

    def ending(self) -> bytes:
        """The events after the last output."""

    def failure(self, error: ApiError) -> bytes:
        """The events that end an answer which failed after it began."""


def openai_failure(error: ApiError) -> bytes:
    return b"data: " + orjson.dumps(error.body()) + b"\n\n" + DONE


@dataclass(slots=True)
class Tally:
    """Token counts of an answer. `with_details`: usage shows the cached part of the prompt. `with_drafts`: what became
    of drafts is told beside usage."""

    num_prompt_tokens: int
    with_details: bool
    with_drafts: bool = False
    num_completion_tokens: int = 0
    num_cached_tokens: int = 0
    drafts: dict[int, DraftCounts] = field(default_factory=dict)  # by index, as they were told last

    def note(self, output: TextOutput) -> None:
        self.num_completion_tokens += len(output.token_ids)
        self.num_cached_tokens += output.num_cached_tokens
        if self.with_drafts and output.drafts is not None:
            self.drafts[output.index] = output.drafts

    def closing(self) -> dict[str, Any]:
        """Returns the fields that end a whole answer, or the last chunk of a streamed one: usage, and `metrics` in
        vLLM's words where there is speculation."""
        closing: dict[str, Any] = {"usage": self.usage()}
        if self.drafts:
            counts = sum(self.drafts.values(), DraftCounts())
            closing["metrics"] = {"speculative_decoding": _draft_figures(counts)}
        return closing

    def usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self.num_prompt_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
            "completion_tokens": self.num_completion_tokens,
        }
        if self.with_details:
            usage["prompt_tokens_details"] = {"cached_tokens": min(self.num_cached_tokens, self.num_prompt_tokens)}
        return usage


def _draft_figures(counts: DraftCounts) -> dict[str, Any]:
    return {
        "mean_acceptance_length": round(1 + counts.accepted_tokens / max(counts.drafts, 1), 4),
        "draft_acceptance_rate": round(counts.accepted_tokens / max(counts.draft_tokens, 1), 4),
        "acceptance_histogram": list(counts.histogram),
        "num_spec_steps": counts.drafts,
        "num_accepted_draft_tokens": counts.accepted_tokens,
        "num_draft_tokens": counts.draft_tokens,
    }


@dataclass(frozen=True, slots=True)
class UsageRule:
    """Usage is streamed never, at the end, or with every event."""

    at_end: bool
    always: bool

    @classmethod
    def of(cls, fields: GenerationFields, *, forced: bool) -> "UsageRule":
        options = fields.stream_options
        at_end = forced or bool(options and options.include_usage)
        return cls(at_end, at_end and bool(forced or (options and options.continuous_usage_stats)))


@dataclass(frozen=True, slots=True)
class Head:
    """The fields with which every object of an answer begins."""

    id: str
    created: int
    model: str

    @classmethod
    def new(cls, prefix: str, request_id: str, model: str) -> "Head":
        return cls(f"{prefix}-{request_id}", int(time.time()), model)

    def fields(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def event_start(self, kind: str) -> bytes:
        """Up to the value of `choices`."""
        return b"data: " + orjson.dumps(self.fields(kind))[:-1] + b',"choices":'


class EventWriter:
    """Writes events of one answer: the constant parts are encoded once, and a plain event is a join of bytes."""

    def __init__(self, start: bytes, before_text: bytes, after_text: bytes, rule: UsageRule, tally: Tally) -> None:
        """A choice is `{"index":<i>` + before_text + the text as JSON + after_text + the rest."""
        self._start = start
        self._before_text = before_text
        self._after_text = after_text
        self._rule = rule
        self._tally = tally
        null_usage = b',"usage":null' if rule.at_end else b""
        self._plain_end = after_text + b',"logprobs":null,"finish_reason":null}]' + null_usage + b"}\n\n"
        self._plain_starts: dict[int, bytes] = {}

    def event(self, output: TextOutput, text: str, logprobs: Any, extra: dict[str, Any] | None = None) -> bytes:
        """`extra` are more fields of the choice."""
        if logprobs is None and output.finish_reason is None and not extra and not self._rule.always:
            return self._plain_start(output.index) + orjson.dumps(text) + self._plain_end
        rest = {"logprobs": logprobs, "finish_reason": output.finish_reason, **(extra or {})}
        if output.finish_reason is not None:
            rest["stop_reason"] = output.stop_reason
        choice = self._plain_start(output.index) + orjson.dumps(text) + self._after_text + b"," + orjson.dumps(rest)[1:]
        return choice + b"]" + self._usage() + b"}\n\n"

    def delta_event(
        self, output: TextOutput, delta: dict[str, Any], logprobs: Any, extra: dict[str, Any] | None = None
    ) -> bytes:
        """Makes the event of a chat chunk whose delta is more than content."""
        rest = {"delta": delta, "logprobs": logprobs, "finish_reason": output.finish_reason, **(extra or {})}
        if output.finish_reason is not None:
            rest["stop_reason"] = output.stop_reason
        return self.choice(output.index, orjson.dumps(rest)[1:-1])

    def choice(self, index: int, rest: bytes, more: dict[str, Any] | None = None) -> bytes:
        """An event whose choice has `rest` (fields as JSON, with no braces) after its index, and `more` beside it."""
        tail = b"," + orjson.dumps(more)[1:-1] if more else b""
        return self._start + b'[{"index":%d,%s}]' % (index, rest) + self._usage() + tail + b"}\n\n"

    def ending(self) -> bytes:
        """The usage where it was asked for, and the end."""
        if not self._rule.at_end:
            return DONE
        return self._start + b"[]," + orjson.dumps(self._tally.closing())[1:] + b"\n\n" + DONE

    def _plain_start(self, index: int) -> bytes:
        start = self._plain_starts.get(index)
        if start is None:
            start = self._plain_starts[index] = self._start + b'[{"index":%d' % index + self._before_text
        return start

    def _usage(self) -> bytes:
        if self._rule.always:
            return b',"usage":' + orjson.dumps(self._tally.usage())
        return b',"usage":null' if self._rule.at_end else b""
