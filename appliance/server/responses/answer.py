"""A response, whole or as numbered events: items follow each other, each with its parts, deltas and ends."""

from collections.abc import Callable
from typing import Any

import orjson

from appliance.requests.errors import ApiError
from appliance.server.output.answers import Tally
from appliance.server.output.logprobs import LogprobFormatter
from appliance.server.output.message import ToolCallDelta
from appliance.server.requests.turn import ChatTurn
from appliance.server.responses.items import CallItem, MessageItem, OpenItem, ReasoningItem
from appliance.server.state import ServerState
from appliance.service.requests import TextOutput

Keep = Callable[[dict[str, Any]], None]


class ResponseAnswer:
    """`told`: the fields that repeat the request. `keep` gets the response when it has ended."""

    def __init__(self, state: ServerState, turn: ChatTurn, told: dict[str, Any], keep: Keep) -> None:
        request = turn.request
        self.tally = Tally(len(request.prompt_token_ids), state.plan.serving.answers.prompt_tokens_details)
        self._told = told
        self._keep = keep
        self._reader = turn.readers()[0]
        self._num_top = request.sampling.logprobs
        self._formatter = LogprobFormatter(
            state.tokenizer, as_ids=state.plan.serving.answers.return_tokens_as_token_ids
        )
        self._suffix = request.request_id
        self._items: list[OpenItem] = []
        self._is_open = False  # the last item
        self._end: TextOutput | None = None
        self._num_events = 0
        self._num_reasoning_tokens = 0

    def response(self, status: str, error: dict[str, str] | None = None) -> dict[str, Any]:
        """The response object as it is now."""
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        usage = self._usage() if status in ("completed", "incomplete") else None
        output = [item.told() for item in self._items]
        return {
            **self._told, "status": status, "error": error, "incomplete_details": details, "output": output,
            "usage": usage,
        }  # fmt: skip

    def opening(self) -> bytes:
        kinds = ("response.created", "response.in_progress")
        return self._encoded([{"type": kind, "response": self.response("in_progress")} for kind in kinds])

    def event(self, output: TextOutput) -> bytes:
        return self._encoded(self._take(output))

    def add(self, output: TextOutput) -> None:
        self._take(output)

    def ending(self) -> bytes:
        events = self._close()
        response = self._ended()
        return self._encoded([*events, {"type": f"response.{response['status']}", "response": response}])

    def body(self) -> bytes:
        self._close()
        return orjson.dumps(self._ended())

    def failure(self, error: ApiError) -> bytes:
        return self._encoded([{"type": "response.failed", "response": self.failed(error.message)}])

    def failed(self, message: str) -> dict[str, Any]:
        """The response that ends with an error."""
        self._close()
        response = self.response("failed", {"code": "server_error", "message": message})
        self._keep(response)
        return response

    def _ended(self) -> dict[str, Any]:
        is_whole = self._end is None or self._end.finish_reason != "length"
        response = self.response("completed" if is_whole else "incomplete")
        self._keep(response)
        return response

    def _take(self, output: TextOutput) -> list[dict[str, Any]]:
        self.tally.note(output)
        if output.finish_reason is not None:
            self._end = output
        delta = self._reader.push(output)
        events: list[dict[str, Any]] = []
        if delta.reasoning:
            self._num_reasoning_tokens += len(output.token_ids)
            events += self._write(ReasoningItem, delta.reasoning, [])
        if delta.content or (self._num_top is not None and output.logprobs and not delta.reasoning):
            logprobs = self._formatter.chat(output.logprobs or [], self._num_top) if self._num_top is not None else []
            events += self._write(MessageItem, delta.content, logprobs)
        for call in delta.tool_calls:
            events += self._write_call(call)
        return events

    def _write(
        self, kind: type[ReasoningItem | MessageItem], text: str, logprobs: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        events = []
        if not (self._is_open and isinstance(self._items[-1], kind)):
            events = [*self._close(), *self._begin(kind(self._suffix, len(self._items)))]
        return [*events, *self._items[-1].write(text, logprobs)]

    def _write_call(self, call: ToolCallDelta) -> list[dict[str, Any]]:
        events, last = [], self._items[-1] if self._is_open else None
        if not (isinstance(last, CallItem) and last.index == call.index):
            item = CallItem(self._suffix, len(self._items), call.index, call.id or "", call.name or "")
            events = [*self._close(), *self._begin(item)]
        return [*events, *self._items[-1].write(call.arguments, [])] if call.arguments else events

    def _begin(self, item: OpenItem) -> list[dict[str, Any]]:
        self._items.append(item)
        self._is_open = True
        return item.begin()

    def _close(self) -> list[dict[str, Any]]:
        if not self._is_open:
            return []
        self._is_open = False
        is_cut = self._end is not None and self._end.finish_reason == "length"
        return self._items[-1].end("incomplete" if is_cut else "completed")

    def _usage(self) -> dict[str, Any]:
        tally = self.tally
        cached = min(tally.num_cached_tokens, tally.num_prompt_tokens) if tally.with_details else 0
        return {
            "input_tokens": tally.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": tally.num_completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._num_reasoning_tokens},
            "total_tokens": tally.num_prompt_tokens + tally.num_completion_tokens,
        }

    def _encoded(self, events: list[dict[str, Any]]) -> bytes:
        pieces: list[bytes] = []
        for event in events:
            data = orjson.dumps({**event, "sequence_number": self._num_events})
            self._num_events += 1
            pieces.append(b"event: " + event["type"].encode() + b"\ndata: " + data + b"\n\n")
        return b"".join(pieces)
