"""The turns of a response that uses tools of servers: the model writes, its calls are made, and it goes on.

Each call is in the log with its server, tool, time, bytes and outcome; its arguments are there only where requests are
logged.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import orjson

from appliance.base.log import fields as log_fields
from appliance.base.log import logger
from appliance.engine.messages import ErrorKind
from appliance.requests.errors import ApiError
from appliance.requests.fields import ChatFields
from appliance.server.http.callers import owner
from appliance.server.mcp.messages import ToolServerError
from appliance.server.requests.turn import ChatTurn, capped, prepare_turn
from appliance.server.responses.answer import WAKE, ResponseAnswer
from appliance.server.responses.approvals import Approved
from appliance.server.responses.conversation import ITEMS, chat_fields
from appliance.server.responses.fields import InputItem, ResponsesFields
from appliance.server.responses.offers import Offers
from appliance.server.responses.server_items import ServerCallItem
from appliance.server.state import ServerState
from appliance.service.errors import RequestFailedError
from appliance.service.requests import TextOutput
from appliance.service.streams import OutputStream

_log = logger("tools")
_INVALID_PARAMS: Final = -32602  # of JSON-RPC


@dataclass(frozen=True, slots=True)
class AskedResponse:
    """What a response answers. items: all, of which `num_earlier` come from earlier responses."""

    fields: ResponsesFields
    items: Sequence[InputItem]
    num_earlier: int
    offers: Offers = field(default_factory=Offers)
    approved: tuple[Approved, ...] = ()

    def chat(self, output: Sequence[dict[str, Any]] = ()) -> ChatFields:
        """The conversation for the model's next turn. `output`: what the response has so far. Raises ApiError 400."""
        items = [*self.items, *ITEMS.decode(orjson.dumps(output))]
        return chat_fields(self.fields, items, num_earlier=self.num_earlier, offers=self.offers)


class ToolLoop:
    """Iterates like the stream of one turn. Between turns it gives WAKE when the answer has events to tell."""

    def __init__(
        self, state: ServerState, conversation: AskedResponse, answer: ResponseAnswer, turn: ChatTurn | None
    ) -> None:
        """turn: the first; None where approved calls come before it."""
        self._state = state
        self._conversation = conversation
        self._answer = answer
        self._turn = turn
        self._is_streamed = bool(conversation.fields.stream) and not conversation.fields.background
        self._num_turns = 1
        self._num_calls: dict[str, int] = {}  # by server
        self._is_spent = False
        self._is_closed = False
        self._stream: OutputStream | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._outputs = self._run()

    def close(self) -> None:
        """Ends the turn or the calls that run now, and so the iteration."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.close()
        for call in self._calls:
            call.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[TextOutput]:
        """Raises RequestFailedError."""
        return await anext(self._outputs)

    async def _run(self) -> AsyncIterator[list[TextOutput]]:
        for approved in self._conversation.approved:
            self._answer.add_call(approved)
        turn = self._turn
        while not self._is_closed:
            if turn is not None:
                with self._state.client.generate(turn.request, is_streamed=self._is_streamed) as self._stream:
                    async for outputs in self._stream:
                        yield outputs
                self._answer.close_turn()
            calls = self._answer.ready_calls()
            if self._is_closed or (turn is not None and not calls):
                return
            yield [WAKE]  # that the calls are written
            async for _ in self._made(calls):
                yield [WAKE]
            if self._is_closed or self._answer.waits_for_caller:
                return
            turn = await self._next_turn()
            if turn is None:
                return

    async def _made(self, calls: Sequence[ServerCallItem]) -> AsyncIterator[None]:
        """Makes the calls at the same time, and yields when one has ended."""
        self._calls = {asyncio.create_task(self._make(call)) for call in calls}
        try:
            while self._calls and not self._is_closed:
                ended, self._calls = await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    if not task.cancelled():
                        task.result()
                yield
        finally:
            for task in self._calls:
                task.cancel()

    async def _make(self, call: ServerCallItem) -> None:
        began, outcome, text, error = time.monotonic(), "cancelled", None, None
        try:
            outcome, text, error = await self._outcome(call)
            self._answer.finish_call(call, text, error)
        finally:
            values = log_fields(
                response=self._answer.id,
                server=call.offered.label,
                tool=call.offered.tool.name,
                ms=round((time.monotonic() - began) * 1000, 1),
                bytes=len((text or "").encode()),
                outcome=outcome,
                key=owner() or "-",
                **self._arguments(call),
            )
            _log.info("called", extra=values)

    def _arguments(self, call: ServerCallItem) -> dict[str, str]:
        logs = self._state.plan.serving.logs
        return {"arguments": call.arguments[: logs.max_log_len]} if logs.log_requests else {}

    async def _outcome(self, call: ServerCallItem) -> tuple[str, str | None, dict[str, Any] | None]:
        """Returns a word for the log, the text, and the error in OpenAI's form."""
        if not self._spend(call):
            problem = "no call is left: max_tool_calls of the request or max_calls of the server"
            return "refused", None, _protocol_error(problem)
        try:
            arguments = orjson.loads(call.arguments or "{}")
        except orjson.JSONDecodeError:
            arguments = None
        if not isinstance(arguments, dict):
            return "malformed", None, _protocol_error("the arguments are no JSON object", _INVALID_PARAMS)
        try:
            result = await call.offered.server.call(call.offered.tool.name, arguments)
        except ToolServerError as error:
            kind = "http_error" if error.is_http else "mcp_protocol_error"
            return "failed", None, {"type": kind, "code": error.code, "message": str(error)}
        if result.is_error:
            return "error", result.text, {"type": "mcp_tool_execution_error", "content": result.content}
        return "done", result.text, None

    def _spend(self, call: ServerCallItem) -> bool:
        """Takes one call from what the request and the server allow; False where none is left."""
        label, most = call.offered.label, self._conversation.fields.max_tool_calls
        own = self._num_calls.get(label, 0)
        may = own < call.offered.server.plan.max_calls and (most is None or sum(self._num_calls.values()) < most)
        if may:
            self._num_calls[label] = own + 1
        self._is_spent = self._is_spent or not may
        return may

    async def _next_turn(self) -> ChatTurn | None:
        """Returns None when the response has no tokens left. Raises RequestFailedError."""
        limit = self._conversation.fields.max_output_tokens
        left = None if limit is None else limit - self._answer.tally.num_completion_tokens
        if left is not None and left <= 0:
            self._answer.is_cut = True
            return None
        self._num_turns += 1
        try:
            chat = self._conversation.chat(self._answer.output())
            if self._num_turns > 2 or self._turn is not None:
                chat.tool_choice = self._later_choice(chat)
            turn = await prepare_turn(self._state, chat, f"{self._answer.suffix}-{self._num_turns}")
        except ApiError as error:
            raise RequestFailedError(ErrorKind.INVALID, error.message, error.param, code=error.code) from error
        turn = turn if left is None else capped(turn, left)
        self._answer.begin_turn(turn)
        return turn

    def _later_choice(self, chat: ChatFields) -> Any:
        """What must be called was called in the first turn; without a call left the model must answer."""
        parsers, choice = self._state.plan.serving.parsers, chat.tool_choice
        if self._is_spent or choice == "none" or parsers.tools is None or not parsers.auto_tool_choice:
            return "none"
        if isinstance(choice, dict) and choice["type"] == "allowed_tools":
            return {**choice, "allowed_tools": {**choice["allowed_tools"], "mode": "auto"}}
        return "auto"


def _protocol_error(message: str, code: int = -32000) -> dict[str, Any]:
    return {"type": "mcp_protocol_error", "code": code, "message": message}
