"""A server of tools of the older transport: a stream of events from it, whose first names where messages are posted.

The protocol says how a client finds one (Backwards Compatibility, 2025-06-18): a server that answers the POST of the
newer transport with 4xx is asked by GET for such a stream. Redirects are not followed, and the address that the server
names must be of its own origin: messages carry the headers of the spec.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Self

import httpx
import msgspec

from appliance.server.mcp.events import EventParser, ServerEvent
from appliance.server.mcp.http import FAILURES, refusal, unreachable
from appliance.server.mcp.messages import (
    ToolServerError,
    message_of,
    notification_bytes,
    reply_bytes,
    request_bytes,
    too_long,
)
from appliance.server.mcp.open_calls import OpenCalls

_REPLY_WITHIN_S: Final = 10.0


class SseTransport:
    """max_bytes: of one event. The caller bounds the time."""

    def __init__(self, url: str, headers: Mapping[str, str], max_bytes: int) -> None:
        self._url = url
        self._max_bytes = max_bytes
        self._client = httpx.AsyncClient(headers=headers, timeout=None, trust_env=False)
        self._endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._calls = OpenCalls()
        self._is_closed = False
        self._last_heard = time.monotonic()
        self._reader = asyncio.create_task(self._read(), name="tool server")

    @classmethod
    async def opened(cls, url: str, headers: Mapping[str, str], max_bytes: int) -> Self:
        """Returns a connection whose server has said where messages are posted. Raises ToolServerError."""
        transport = cls(url, headers, max_bytes)
        try:
            await asyncio.shield(transport._endpoint)
        except BaseException:
            await transport.close()
            raise
        return transport

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def last_heard(self) -> float:
        return self._last_heard

    async def request(self, method: str, params: dict[str, Any]) -> msgspec.Raw:
        with self._calls.begun() as call:
            await self._post(request_bytes(call.number, method, params))
            return await call.answer

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        await self._post(notification_bytes(method, params))

    async def close(self) -> None:
        self._is_closed = True
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._client.aclose()

    async def _post(self, body: bytes) -> None:
        """Gives the server a message; what it answers comes as an event. Raises ToolServerError."""
        if self._is_closed:
            raise ToolServerError("the server closed the connection")
        url, kind = await asyncio.shield(self._endpoint), {"content-type": "application/json"}
        try:
            async with self._client.stream("POST", url, content=body, headers=kind) as answer:
                if not answer.is_success:
                    raise refusal(answer)
        except FAILURES as error:
            raise unreachable(error) from error

    async def _read(self) -> None:
        """Reads events until the stream ends; then what is open has failed."""
        reason = ToolServerError("the server closed the connection")
        try:
            await self._stream()
        except ToolServerError as error:
            reason = error
        except FAILURES as error:
            reason = unreachable(error)
        finally:
            self._is_closed = True
            if not self._endpoint.done():
                self._endpoint.set_exception(reason)
            self._calls.fail_all(str(reason))
            self._endpoint.exception()  # so that nobody complains of it where nobody waits

    async def _stream(self) -> None:
        parser = EventParser()
        async with self._client.stream("GET", self._url, headers={"accept": "text/event-stream"}) as answer:
            kind = answer.headers.get("content-type", "")
            if not answer.is_success or not kind.startswith("text/event-stream"):
                raise refusal(answer)
            async for part in answer.aiter_bytes():
                self._last_heard = time.monotonic()
                for event in parser.feed(part):
                    await self._take(event)
                if parser.num_waiting > self._max_bytes:
                    raise too_long(self._max_bytes)

    async def _take(self, event: ServerEvent) -> None:
        if event.name == "endpoint" and not self._endpoint.done():
            self._endpoint.set_result(self._own(event.data))
        elif event.name == "message" and self._endpoint.done():
            await self._take_message(event.data)

    async def _take_message(self, data: bytes) -> None:
        message = message_of(data)
        if message.is_answer:
            self._calls.take(message)
        elif message.wants_reply:
            with suppress(ToolServerError, TimeoutError):
                async with asyncio.timeout(_REPLY_WITHIN_S):
                    await self._post(reply_bytes(message))

    def _own(self, named: bytes) -> str:
        """Returns the address that the server names. Raises ToolServerError for one of another origin."""
        ours = httpx.URL(self._url)
        try:
            found = ours.join(named.decode())
        except (UnicodeDecodeError, httpx.InvalidURL) as error:
            raise ToolServerError("the server names no address for messages") from error
        if (found.scheme, found.host, found.port) != (ours.scheme, ours.host, ours.port):
            raise ToolServerError("the server wants messages at another origin, which is not followed")
        return str(found)
