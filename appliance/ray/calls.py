"""One HTTP request on its way to an application in another process, and the answer on its way back."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import suppress
from typing import Any

import msgspec
from starlette.types import ASGIApp

Headers = list[tuple[bytes, bytes]]
_MOST_WAITING = 64  # pieces of an answer that nobody has taken yet: an application that is ahead waits
_END_WAIT_S = 5.0  # for an application that was told that its client is gone


class HttpCall(msgspec.Struct, frozen=True):
    """A request with its whole body. path: without the prefix at which the application is mounted."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes

    def scope(self) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query,
            "root_path": "",
            "headers": self.headers,
            "client": None,
            "server": None,
        }


class AnswerHead(msgspec.Struct, frozen=True):
    """How an answer begins."""

    status: int
    headers: Headers


class NamedAnswer(msgspec.Struct, frozen=True):
    """The whole answer of one replica among several."""

    replica: str
    head: AnswerHead
    body: bytes


async def answer(app: ASGIApp, call: HttpCall) -> AsyncIterator[AnswerHead | bytes]:
    """Yields the head of the answer, then the bytes of its body as they come; bytes that wait already come together.

    A caller that ends early is a client that went away: the application is told. Raises what the application raises.
    """
    exchange = _Exchange(call)
    task = asyncio.create_task(exchange.run(app), name="call")
    try:
        while (piece := await exchange.pieces.get()) is not None:
            if isinstance(piece, bytes):
                piece, ended = exchange.with_waiting(piece)
                yield piece
                if ended:
                    break
            else:
                yield piece
        await task
    finally:
        exchange.is_gone.set()
        exchange.take_all()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.wait([task])), _END_WAIT_S)
        task.cancel()


class _Exchange:
    """What the application is given, and what it gave."""

    def __init__(self, call: HttpCall) -> None:
        self.pieces: asyncio.Queue[AnswerHead | bytes | None] = asyncio.Queue(_MOST_WAITING)
        self.is_gone = asyncio.Event()
        self._call = call
        self._is_read = False

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self._call.scope(), self._receive, self._send)
        finally:
            if not self.is_gone.is_set():
                await self.pieces.put(None)

    def with_waiting(self, piece: bytes) -> tuple[bytes, bool]:
        """Returns the piece with all bytes that wait behind it, and whether the answer has ended there."""
        found = [piece]
        while not self.pieces.empty():
            following = self.pieces.get_nowait()
            if not isinstance(following, bytes):
                return b"".join(found), following is None
            found.append(following)
        return b"".join(found), False

    def take_all(self) -> None:
        """Forgets what waits, so that nobody waits to add to it."""
        while not self.pieces.empty():
            self.pieces.get_nowait()

    async def _receive(self) -> MutableMapping[str, Any]:
        """The body once; then the end of the connection, when it comes."""
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._call.body, "more_body": False}
        await self.is_gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if self.is_gone.is_set():
            return
        if message["type"] == "http.response.start":
            await self.pieces.put(AnswerHead(message["status"], list(message.get("headers", ()))))
        elif message["type"] == "http.response.body" and (body := message.get("body", b"")):
            await self.pieces.put(bytes(body))
