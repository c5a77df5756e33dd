"""A message as Anthropic writes it, whole or as events: start, blocks one after another, delta with the end, stop."""

from typing import Any

import orjson

from appliance.requests.errors import ApiError
from appliance.server.anthropic.fields import MessagesFields
from appliance.server.output.answers import Tally
from appliance.server.output.message import MessageDelta, ToolCallDelta
from appliance.server.requests.turn import ChatTurn
from appliance.server.state import ServerState
from appliance.service.requests import TextOutput

_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageAnswer:
    """One message. Blocks follow each other: a delta of another kind ends the block before it."""

    def __init__(
        self, state: ServerState, fields: MessagesFields, turn: ChatTurn, applied_edits: list[dict[str, Any]]
    ) -> None:
        """`applied_edits`: of the context; the answer lists them if the request has `context_management`."""
        self._edits = {}
        if fields.context_management is not None:
            self._edits = {"context_management": {"applied_edits": applied_edits}}
        self._diagnostics = _diagnostics(fields)
        self.tally = Tally(len(turn.request.prompt_token_ids), state.plan.serving.answers.prompt_tokens_details)
        self._id = f"msg_{turn.request.request_id}"
        self._model = turn.request.adapter or state.model_name
        self._reader = turn.readers()[0]
        self._asked_tokens = fields.max_tokens
        self._blocks: list[dict[str, Any]] = []
        self._open: str | None = None  # the kind of the last block, or the number of its tool call
        self._arguments: list[str] = []  # of the open tool call
        self._end: TextOutput | None = None
        self._has_begun = False

    def opening(self) -> bytes:
        """Begins with message_start, which says how much of the prompt was cached: the first output has that number."""
        return b""

    def event(self, output: TextOutput) -> bytes:
        events = self._take(output)
        if not self._has_begun:
            self._has_begun = True
            message = {**self._head(), "content": [], **_stopped(None, None), "usage": self._usage(1)}
            events.insert(0, {"type": "message_start", "message": message})
        return _encoded(events)

    def ending(self) -> bytes:
        delta = {"type": "message_delta", "delta": self._stop(), "usage": self._usage(), **self._edits}
        return _encoded([*self._close(), delta, {"type": "message_stop"}])

    def failure(self, error: ApiError) -> bytes:
        return _encoded([error.body("anthropic")])

    def add(self, output: TextOutput) -> None:
        self._take(output)

    def body(self) -> bytes:
        self._close()
        told = {"content": self._blocks, **self._stop(), "usage": self._usage(), **self._edits}
        return orjson.dumps({**self._head(), **told})

    def _take(self, output: TextOutput) -> list[dict[str, Any]]:
        """The events of one output; the blocks hold their sum."""
        self.tally.note(output)
        if output.finish_reason is not None:
            self._end = output
        delta = self._reader.push(output)
        events: list[dict[str, Any]] = []
        if delta.reasoning:
            events += self._write("thinking", delta)
        if delta.content:
            events += self._write("text", delta)
        for call in delta.tool_calls:
            events += self._write_call(call)
        return events

    def _write(self, kind: str, delta: MessageDelta) -> list[dict[str, Any]]:
        events = self._begin(kind, dict(_EMPTY[kind]))
        text = delta.reasoning if kind == "thinking" else delta.content
        self._blocks[-1][kind] += text
        return [*events, self._delta({"type": f"{kind}_delta", kind: text})]

    def _write_call(self, call: ToolCallDelta) -> list[dict[str, Any]]:
        block: dict[str, Any] = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        events = self._begin(f"call {call.index}", block)
        if call.arguments:
            self._arguments.append(call.arguments)
            events.append(self._delta({"type": "input_json_delta", "partial_json": call.arguments}))
        return events

    def _begin(self, kind: str, block: dict[str, Any]) -> list[dict[str, Any]]:
        if self._open == kind:
            return []
        events, is_first = self._close(), not self._blocks
        self._open = kind
        start = {"type": "content_block_start", "index": len(self._blocks), "content_block": dict(block)}
        self._blocks.append(block)
        return [*events, start, {"type": "ping"}] if is_first else [*events, start]

    def _close(self) -> list[dict[str, Any]]:
        """Ends the open block."""
        if self._open is None:
            return []
        events = []
        if self._open == "thinking":
            events.append(self._delta({"type": "signature_delta", "signature": ""}))
        elif self._open != "text":
            self._blocks[-1]["input"] = _arguments("".join(self._arguments))
            self._arguments = []
        self._open = None
        return [*events, {"type": "content_block_stop", "index": len(self._blocks) - 1}]

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _head(self) -> dict[str, Any]:
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._model}
        return {**head, **self._diagnostics}

    def _stop(self) -> dict[str, Any]:
        end = self._end
        if end is None:
            return _stopped(None, None)
        if isinstance(end.stop_reason, str):
            return _stopped("stop_sequence", end.stop_reason)
        if end.finish_reason == "length" and self.tally.num_completion_tokens < self._asked_tokens:
            return _stopped("model_context_window_exceeded", None)
        return _stopped(_STOP_REASONS.get(end.finish_reason or "", "end_turn"), None)

    def _usage(self, num_output_tokens: int | None = None) -> dict[str, Any]:
        """input_tokens and cache_read_input_tokens add up to the prompt."""
        tally = self.tally
        cached = tally.num_cached_tokens if tally.with_details else 0
        return {
            "input_tokens": tally.num_prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": tally.num_completion_tokens if num_output_tokens is None else num_output_tokens,
        }


def _diagnostics(fields: MessagesFields) -> dict[str, Any]:
    """Why a cached prefix was not hit is not known here, which Anthropic has a word for."""
    if fields.diagnostics is None:
        return {}
    asked = fields.diagnostics.previous_message_id
    return {"diagnostics": None if asked is None else {"cache_miss_reason": {"type": "unavailable"}}}


def _stopped(reason: str | None, sequence: str | None) -> dict[str, Any]:
    return {"stop_reason": reason, "stop_sequence": sequence}


def _arguments(text: str) -> Any:
    """The input of a tool call; a model may write what is no JSON object."""
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {"_invalid_json": text}
    return value if isinstance(value, dict) else {"_invalid_json": text}


def _encoded(events: list[dict[str, Any]]) -> bytes:
    pieces = (b"event: " + event["type"].encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n" for event in events)
    return b"".join(pieces)
