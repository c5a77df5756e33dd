"""Who answers a request of a batch: an API by its path, with a JSON body in and out."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

_Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [_Message, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]], Awaitable[None]
]


@dataclass(frozen=True, slots=True)
class LineReply:
    status: int
    request_id: str
    body: bytes  # JSON


Answerer = Callable[[str, bytes], Awaitable[LineReply]]  # (path, JSON body)


def asgi_answerer(app: AsgiApp) -> Answerer:
    """Calls an HTTP application without sockets, so that a batch gets what a client of the server gets."""

    async def answer(path: str, body: bytes) -> LineReply:
        return await _Call(path, body).run(app)

    return answer


class _Call:
    """One request and what came back."""

    def __init__(self, path: str, body: bytes) -> None:
        self._request_id = uuid.uuid4().hex
        self._body: bytes | None = body
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"host", b"batch"),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"x-request-id", self._request_id.encode()),
            ],
            "client": None,
            "server": None,
        }
        self._status = 0
        self._pieces: list[bytes] = []

    async def run(self, app: AsgiApp) -> LineReply:
        await app(self._scope, self._receive, self._send)
        return LineReply(self._status, self._request_id, b"".join(self._pieces))

    async def _receive(self) -> _Message:
        """The body once; then nothing more, for this client never goes away."""
        if self._body is None:
            await asyncio.get_running_loop().create_future()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def _send(self, message: _Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif message["type"] == "http.response.body":
            self._pieces.append(message.get("body", b""))
