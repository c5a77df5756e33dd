"""A server of tools that runs elsewhere: "streamable HTTP", each message a POST, answered as JSON or as events.

Redirects are not followed, and no proxy of the environment is used: messages go where the spec says, or nowhere.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final

import httpx
import msgspec

from appliance.server.mcp.events import EventParser
from appliance.server.mcp.messages import (
    RpcMessage,
    ToolServerError,
    message_of,
    notification_bytes,
    reply_bytes,
    request_bytes,
    result_of,
    too_long,
    version_of,
)

_END_WITHIN_S: Final = 2.0
_SESSION: Final = "mcp-session-id"
_GONE: Final = 404  # the server does not know our session any more
_ACCEPT: Final = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
FAILURES: Final = (httpx.HTTPError, httpx.InvalidURL)


def unreachable(error: Exception) -> ToolServerError:
    """error: of FAILURES."""
    return ToolServerError(f"the server cannot be reached: {error or type(error).__name__}")


def refusal(answer: httpx.Response) -> ToolServerError:
    return ToolServerError(f"the server answered {answer.status_code}", answer.status_code, is_http=True)


class HttpTransport:
    """max_bytes: of one answer. The caller bounds the time."""

    def __init__(self, url: str, headers: Mapping[str, str], max_bytes: int) -> None:
        self._url = url
        self._max_bytes = max_bytes
        self._client = httpx.AsyncClient(headers={**headers, **_ACCEPT}, timeout=None, trust_env=False)
        self._num_sent = 0
        self._is_closed = False
        self._last_heard = time.monotonic()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def last_heard(self) -> float:
        return self._last_heard

    async def request(self, method: str, params: dict[str, Any]) -> msgspec.Raw:
        self._num_sent += 1
        number = self._num_sent
        async with aclosing(self._posted(request_bytes(number, method, params))) as messages:
            async for data in messages:
                message = message_of(data)
                if message.is_answer and message.id == number:
                    result = result_of(message)
                    if method == "initialize":
                        self._client.headers["mcp-protocol-version"] = version_of(result)
                    return result
                await self._reply(message)
        raise ToolServerError("the server closed the connection without an answer")

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        async for _ in self._posted(notification_bytes(method, params)):
            continue

    async def close(self) -> None:
        """Ends our session."""
        self._is_closed = True
        if _SESSION in self._client.headers:
            with suppress(httpx.HTTPError):  # a server may refuse to end it, and forgets it in time
                await self._client.delete(self._url, timeout=_END_WITHIN_S)
        await self._client.aclose()

    async def _reply(self, message: RpcMessage) -> None:
        if message.wants_reply:
            async for _ in self._posted(reply_bytes(message)):
                continue

    async def _posted(self, body: bytes) -> AsyncGenerator[bytes, None]:
        """Yields the messages of the answer. Raises ToolServerError."""
        try:
            async with self._client.stream("POST", self._url, content=body) as answer:
                self._check(answer)
                if session := answer.headers.get(_SESSION):
                    self._client.headers[_SESSION] = session
                if answer.headers.get("content-type", "").startswith("text/event-stream"):
                    async for data in self._events(answer):
                        yield data
                else:
                    whole = b"".join([part async for part in self._bounded(answer)])
                    if whole.strip():
                        yield whole
        except FAILURES as error:
            raise unreachable(error) from error

    def _check(self, answer: httpx.Response) -> None:
        if answer.is_success:
            return
        if answer.status_code == _GONE and _SESSION in self._client.headers:
            self._is_closed = True  # the next use begins another session
        raise refusal(answer)

    async def _bounded(self, answer: httpx.Response) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for part in answer.aiter_bytes():
            self._last_heard = time.monotonic()
            num_bytes += len(part)
            if num_bytes > self._max_bytes:
                raise too_long(self._max_bytes)
            yield part

    async def _events(self, answer: httpx.Response) -> AsyncIterator[bytes]:
        parser = EventParser()
        async for part in self._bounded(answer):
            for event in parser.feed(part):
                yield event.data
