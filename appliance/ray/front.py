"""Takes the requests of an application from Serve's proxies, and passes each to an engine."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from appliance.base.extras import import_extra
from appliance.base.log import fields, logger
from appliance.ray.calls import AnswerHead, HttpCall, NamedAnswer
from appliance.ray.figures import merged
from appliance.ray.prefixes import pieces_of
from appliance.requests.errors import ApiError
from appliance.server.http.errors import error_response

_TRIES: Final = 3
_PAUSE_S: Final = 0.2  # between tries
_METRICS: Final = "/metrics"
_OK: Final = 200
_UNAVAILABLE: Final = 503
_EVENTS: Final = b"text/event-stream"
_log = logger("server")


class ServeFront:
    """Passes requests on with the prompt's digests, by which the router chooses an engine.

    An engine that is gone, or not ready, before it has begun to answer costs nothing: another one is asked.
    """

    def __init__(self, engine: Any, max_body_bytes: int) -> None:
        """engine: the handle of the engines."""
        self._engine = engine.options(stream=True)
        self._max_body_bytes = max_body_bytes
        exceptions = import_extra("ray.exceptions", extra="ray", asked_by="appliance.ray.serve")
        self._lost = exceptions.RayActorError
        self._full = import_extra("ray.serve.exceptions", extra="ray", asked_by="appliance.ray.serve").BackPressureError

    async def __call__(self, request: Request) -> Response:
        body = await request.body()
        if len(body) > self._max_body_bytes:
            return error_response(ApiError(413, f"the body has {len(body)} bytes; {self._max_body_bytes} are allowed"))
        path = request.scope["path"].removeprefix(request.scope.get("root_path", "")) or "/"
        call = HttpCall(request.method, path, request.scope["query_string"], list(request.scope["headers"]), body)
        if path == _METRICS:
            return await self._metrics(call)
        try:
            head, rest = await self._begin(call, pieces_of(body) if request.method == "POST" else ())
        except self._full:
            return error_response(ApiError(429, "all engines are full; try again later"))
        except self._lost as error:
            _log.error("no engine answers", extra=fields(reason=str(error)))
            return error_response(ApiError(_UNAVAILABLE, "no engine answers; try again later"))
        response = StreamingResponse(self._guarded(head, rest), head.status)
        response.raw_headers = head.headers
        return response

    async def _metrics(self, call: HttpCall) -> Response:
        """Asks every engine, for each counts for itself. A refusal is the same from all of them."""
        answers: list[NamedAnswer] = await self._engine.broadcast("whole", call).results_async()
        refused = next((each for each in answers if each.head.status != _OK), None)
        body = merged({each.replica: each.body.decode() for each in answers}) if refused is None else refused.body
        head = answers[0].head if refused is None else refused.head
        response = Response(body, head.status)
        kept = [(name, value) for name, value in head.headers if name != b"content-length"]
        response.raw_headers = [*kept, (b"content-length", str(len(response.body)).encode())]
        return response

    async def _begin(self, call: HttpCall, pieces: tuple[bytes, ...]) -> tuple[AnswerHead, AsyncIterator[bytes]]:
        """Returns how the answer begins and the rest of it. Asks again for what has not begun."""
        for attempt in range(1, _TRIES + 1):
            try:
                answer = self._engine.answer.remote(call, pieces if attempt == 1 else ())
                head = await anext(answer)
                if head.status != _UNAVAILABLE or attempt == _TRIES:
                    return head, answer
                answer.cancel()
            except self._lost:
                if attempt == _TRIES:
                    raise
            await asyncio.sleep(_PAUSE_S * attempt)
        raise AssertionError("the last try returns or raises")

    async def _guarded(self, head: AnswerHead, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Ends a stream of events whose engine is lost with an event that says so. Others break off."""
        try:
            async for piece in rest:
                yield piece
        except self._lost:
            if not any(name == b"content-type" and _EVENTS in value for name, value in head.headers):
                raise
            error = ApiError(_UNAVAILABLE, "the engine that answered is gone").body()
            yield b"data: " + orjson.dumps(error) + b"\n\n"
