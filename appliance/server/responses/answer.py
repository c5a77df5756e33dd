"""A response, whole or as numbered events: items follow each other, each with its parts, deltas and ends."""

from collections.abc import Callable
from typing import Any

import orjson

from appliance.requests.errors import ApiError
from appliance.server.output.answers import Tally
from appliance.server.output.logprobs import LogprobFormatter
from appliance.server.output.message import MessageReader, ToolCallDelta
from appliance.server.requests.turn import ChatTurn
from appliance.server.responses.approvals import Approved
from appliance.server.responses.items import CallItem, MessageItem, OpenItem, ReasoningItem
from appliance.server.responses.offers import Offers
from appliance.server.responses.server_items import ApprovalItem, ListItem, ServerCallItem
from appliance.server.state import ServerState
from appliance.service.requests import TextOutput

Keep = Callable[[dict[str, Any]], None]
WAKE = TextOutput(index=0, text="", token_ids=[])  # an output of nothing: the answer has events to tell


class ResponseAnswer:
    """`told`: the fields that repeat the request. `keep` gets the response when it has ended."""

    def __init__(
        self,
        state: ServerState,
        turn: ChatTurn | None,
        told: dict[str, Any],
        keep: Keep,
        offers: Offers = Offers(),  # noqa: B008 - it is frozen
    ) -> None:
        """turn: the first; None where `begin_turn` comes later."""
        self.tally = Tally(0, state.plan.serving.answers.prompt_tokens_details)
        self.id: str = told["id"]
        self.suffix = self.id.removeprefix("resp_")
        self.is_cut = False  # no tokens are left for another turn
        self._told = told
        self._keep = keep
        self._offers = offers
        self._reader = MessageReader()
        self._num_top: int | None = None
        self._formatter = LogprobFormatter(
            state.tokenizer, as_ids=state.plan.serving.answers.return_tokens_as_token_ids
        )
        self._items: list[OpenItem] = []
        self._turn_begins = 0  # at which item
        self._waiting: list[dict[str, Any]] = []  # events that the next output brings along
        self._num_lists = 0  # of tools, that were told
        self._is_open = False  # the last item
        self._end: TextOutput | None = None
        self._num_events = 0
        self._num_reasoning_tokens = 0
        if turn is not None:
            self.begin_turn(turn)

    def begin_turn(self, turn: ChatTurn) -> None:
        """The outputs that come next are of this turn."""
        self.tally.num_prompt_tokens += len(turn.request.prompt_token_ids)
        self._reader = turn.readers()[0]
        self._num_top = turn.request.sampling.logprobs
        self._turn_begins = len(self._items)
        self._end = None

    def close_turn(self) -> None:
        self._waiting += self._close()

    def output(self) -> list[dict[str, Any]]:
        """All items as they are now."""
        return [item.told() for item in self._items]

    def ready_calls(self) -> list[ServerCallItem]:
        """The calls of server tools that are to be made."""
        return [item for item in self._items if isinstance(item, ServerCallItem) and item.is_ready]

    @property
    def waits_for_caller(self) -> bool:
        """The model's last turn calls a function of the caller's, or something that needs approval."""
        return any(isinstance(item, CallItem | ApprovalItem) for item in self._items[self._turn_begins :])

    def add_call(self, approved: Approved) -> None:
        """A call that the caller has approved, before the first turn."""
        self._waiting += self._lists()
        item = ServerCallItem(self.suffix, len(self._items), 0, approved.offered, approved.request_id)
        self._waiting += [*self._begin(item), *item.write(approved.arguments, []), *self._close()]

    def finish_call(self, item: ServerCallItem, output: str | None, error: dict[str, Any] | None) -> None:
        self._waiting += item.finish(output, error)

    def response(self, status: str, error: dict[str, str] | None = None) -> dict[str, Any]:
        """The response object as it is now."""
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        usage = self._usage() if status in ("completed", "incomplete") else None
        return {
            **self._told, "status": status, "error": error, "incomplete_details": details, "output": self.output(),
            "usage": usage,
        }  # fmt: skip

    def opening(self) -> bytes:
        kinds = ("response.created", "response.in_progress")
        response = {**self.response("in_progress"), "output": []}  # what is there already has events of its own
        return self._encoded([{"type": kind, "response": response} for kind in kinds])

    def event(self, output: TextOutput) -> bytes:
        return self._encoded(self._take(output))

    def add(self, output: TextOutput) -> None:
        self._take(output)

    def ending(self) -> bytes:
        events = [*self._told_before(), *self._close()]
        response = self._ended()
        return self._encoded([*events, {"type": f"response.{response['status']}", "response": response}])

    def body(self) -> bytes:
        self._told_before()
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
        is_whole = not self._is_length and not self.is_cut
        response = self.response("completed" if is_whole else "incomplete")
        self._keep(response)
        return response

    @property
    def _is_length(self) -> bool:
        return self._end is not None and self._end.finish_reason == "length"

    def _told_before(self) -> list[dict[str, Any]]:
        """The events that have waited, the lists of tools before all others."""
        lists = self._lists()
        waiting, self._waiting = self._waiting, []
        return [*lists, *waiting]

    def _lists(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for listed in self._offers.lists[self._num_lists :]:
            item = ListItem(self.suffix, len(self._items), listed)
            self._items.append(item)
            events += item.begin()
        self._num_lists = len(self._offers.lists)
        return events

    def _take(self, output: TextOutput) -> list[dict[str, Any]]:
        events = self._told_before()
        if output is WAKE:
            return events
        self.tally.note(output)
        if output.finish_reason is not None:
            self._end = output
        delta = self._reader.push(output)
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
            events = [*self._close(), *self._begin(kind(self.suffix, len(self._items)))]
        return [*events, *self._items[-1].write(text, logprobs)]

    def _write_call(self, call: ToolCallDelta) -> list[dict[str, Any]]:
        events, last = [], self._items[-1] if self._is_open else None
        is_same = isinstance(last, CallItem | ServerCallItem | ApprovalItem) and last.index == call.index
        if not is_same:
            events = [*self._close(), *self._begin(self._call_item(call))]
        return [*events, *self._items[-1].write(call.arguments, [])] if call.arguments else events

    def _call_item(self, call: ToolCallDelta) -> OpenItem:
        offered, place = self._offers.tools.get(call.name or ""), len(self._items)
        if offered is None:
            return CallItem(self.suffix, place, call.index, call.id or "", call.name or "")
        kind = ApprovalItem if offered.needs_approval else ServerCallItem
        return kind(self.suffix, place, call.index, offered)

    def _begin(self, item: OpenItem) -> list[dict[str, Any]]:
        self._items.append(item)
        self._is_open = True
        return item.begin()

    def _close(self) -> list[dict[str, Any]]:
        if not self._is_open:
            return []
        self._is_open = False
        return self._items[-1].end("incomplete" if self._is_length else "completed")

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
