"""From prepared requests to an HTTP answer, whole or streamed; a client that goes away ends them."""

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol, Self

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from appliance.base.log import logger
from appliance.plan.serving_types import HttpPlan
from appliance.requests.errors import as_api_error, internal_error, invalid
from appliance.requests.fields import GenerationFields
from appliance.server.http.chunks import ChunkWriter, chunk_writer
from appliance.server.output.answers import Answer
from appliance.server.state import ServerState
from appliance.service.errors import RequestFailedError
from appliance.service.requests import TextOutput, TextRequest
from appliance.service.streams import OutputStream, merged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.types import Receive, Scope, Send


class AnswerSource(Protocol):
    """What gives the outputs of an answer: the engine, a search, or several turns with tools between them."""

    def close(self) -> None:
        """Ends the iteration."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> list[TextOutput]:
        """Raises RequestFailedError."""


_log = logger("server")
_MAX_REQUEST_ID = 128
_EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies would hold events back
]


def request_id_of(request: Request, http: HttpPlan, fields: GenerationFields) -> str:
    """Takes the client's own id from the body, or from X-Request-Id where the plan allows it; else makes a new one."""
    return new_request_id(request, http, fields.request_id)


def new_request_id(request: Request, http: HttpPlan, given: str | None) -> str:
    """`given`: what the body says. Raises ApiError 400."""
    if given is None and http.request_id_headers:
        given = request.headers.get("x-request-id")
    if given is not None and not (0 < len(given) <= _MAX_REQUEST_ID and given.isascii() and given.isprintable()):
        allowed = f"1 to {_MAX_REQUEST_ID} printable ASCII characters"
        raise invalid("request_id", f"request_id must have {allowed}", "invalid_value")
    return given or uuid.uuid4().hex


async def respond(
    state: ServerState,
    request: Request,
    requests: Sequence[TextRequest],
    answer: Answer,
    *,
    is_streamed: bool,
    source: AnswerSource | None = None,
) -> Response:
    """Waits for the first output before it answers, so that what fails before it still gets its own status.

    `source` answers the requests in the engine's place.
    """
    stream = source or state.client.generate(*requests, is_streamed=is_streamed)
    state.open.load += 1
    try:
        async with _closed_on_disconnect(request.receive, stream):
            if not is_streamed:
                async for outputs in stream:
                    for output in merged(outputs):
                        answer.add(output)
                return Response(answer.body(), media_type="application/json")
            first: list[TextOutput] = await anext(stream, [])
        return _EventStream(state, stream, answer, first)
    except RequestFailedError as failure:
        raise as_api_error(failure) from failure
    finally:
        state.open.load -= 1


async def collect(state: ServerState, request: Request, requests: Sequence[TextRequest]) -> dict[int, TextOutput]:
    """Every sequence whole, by its index. Raises RequestFailedError. A client that goes away ends them."""
    stream = state.client.generate(*requests, is_streamed=False)
    found: dict[int, list[TextOutput]] = {}
    state.open.load += 1
    try:
        async with _closed_on_disconnect(request.receive, stream):
            async for outputs in stream:
                for output in outputs:
                    found.setdefault(output.index, []).append(output)
    finally:
        state.open.load -= 1
    return {index: merged(outputs)[0] for index, outputs in found.items()}


class _EventStream(Response):
    """Server-sent events, one write for all that has come. It counts as load while it runs."""

    def __init__(self, state: ServerState, stream: AnswerSource, answer: Answer, first: list[TextOutput]) -> None:
        super().__init__()
        self.raw_headers = list(_EVENT_STREAM)
        self._state = state
        self._stream = stream
        self._answer = answer
        self._first = first

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        self._state.open.load += 1
        try:
            async with _closed_on_disconnect(receive, self._stream):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await self._send_events(send, scope)
        finally:
            self._state.open.load -= 1
            self._stream.close()

    async def _send_events(self, send: "Send", scope: "Scope") -> None:
        try:
            if opening := self._answer.opening() + self._events(self._first):
                await send({"type": "http.response.body", "body": opening, "more_body": True})
            writer = chunk_writer(scope)
            if writer is not None and isinstance(self._stream, OutputStream):
                await _Push(self._stream, writer, self._events).ended()
            else:
                async for outputs in self._stream:
                    if body := self._events(outputs):
                        await send({"type": "http.response.body", "body": body, "more_body": True})
            ending = self._answer.ending()
        except RequestFailedError as failure:
            ending = self._answer.failure(as_api_error(failure))
        except (OSError, ClientDisconnect):
            raise  # nobody reads on
        except Exception as error:  # noqa: BLE001 - of a parser of the operator's own; the client is told of it
            _log.error("a request failed", exc_info=error)
            ending = self._answer.failure(internal_error())
        await send({"type": "http.response.body", "body": ending, "more_body": False})

    def _events(self, outputs: list[TextOutput]) -> bytes:
        """Empty when there is nothing to show yet."""
        event = self._answer.event
        if len(outputs) == 1:
            return event(outputs[0])
        return b"".join([event(output) for output in merged(outputs)])


class _Push:
    """Writes what a stream has, once a turn of the event loop, while there is room; what comes meanwhile is joined."""

    __slots__ = ("_done", "_encode", "_stream", "_writer")

    def __init__(
        self, stream: OutputStream, writer: ChunkWriter, encode: "Callable[[list[TextOutput]], bytes]"
    ) -> None:
        self._stream = stream
        self._writer = writer
        self._encode = encode
        self._done = asyncio.get_running_loop().create_future()

    async def ended(self) -> None:
        """Writes until the stream ends. Raises RequestFailedError when the request failed."""
        self._stream.follow(self._turn)
        self._writer.on_room = self._turn
        try:
            await self._done
            self._stream.check()
        finally:
            self._stream.follow(None)
            self._writer.on_room = None

    def _turn(self) -> None:
        if self._writer.is_full or self._done.done():
            return
        try:
            if (outputs := self._stream.take()) and (body := self._encode(outputs)):
                self._writer.write(body)
        except Exception as error:  # noqa: BLE001 - whatever it was, it is this request's
            self._done.set_exception(error)
            return
        if self._stream.has_ended:
            self._done.set_result(None)


@asynccontextmanager
async def _closed_on_disconnect(receive: "Receive", stream: AnswerSource) -> "AsyncIterator[None]":
    """Ends the stream, and so the iteration over it, when the client goes away."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        stream.close()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except BaseException:
        stream.close()
        raise
    finally:
        watcher.cancel()
