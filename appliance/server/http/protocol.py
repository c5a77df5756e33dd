"""uvicorn's httptools protocol with the bounds it does not have itself, and errors in OpenAI's shape.

What it adds: time for a head, a body and a reader; sizes of heads, trailers and framing; bounds on connections and
on pipelining; upgrades refused or ignored; every open request of a connection notified when the connection is gone.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from appliance.base.log import fields, logger
from appliance.plan.serving_types import LimitsPlan
from appliance.requests.errors import ApiError
from appliance.server.http.chunks import EXTENSION, ChunkWriter

_log = logger("server")
_LINGER_S = 2.0  # for the rest of a body that is not read: closing at once could destroy the answer on its way
_MAX_PIPELINED = 16
_OF_UPGRADES = frozenset({b"connection", b"upgrade", b"http2-settings"})
_FRAMING_PER_BYTE = 8  # chunks of one byte cost five bytes of framing; more is no honest client


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a connection; `connections` is of all. Seconds are for a whole head, body, or full write buffer."""

    head_bytes: int = 1 << 16
    headers: int = 256
    head_s: float = 10.0
    body_s: float = 60.0
    write_s: float = 30.0
    connections: int = 4096

    @classmethod
    def of(cls, limits: LimitsPlan) -> "Bounds":
        return cls(
            limits.max_header_bytes,
            limits.max_headers,
            limits.header_timeout_s,
            limits.body_timeout_s,
            limits.write_timeout_s,
            limits.max_connections,
        )


class BoundedHttpProtocol(HttpToolsProtocol):
    """Use `bounded_protocol`: uvicorn makes the instances, so the bounds are the class's."""

    bounds: ClassVar[Bounds] = Bounds()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0  # received while the head is not complete
        self._framing_bytes = 0  # of a body: chunk sizes, extensions, trailers
        self._body_bytes = 0
        self._is_in_head = True
        self._has_begun = False  # a message, whose end has not come
        self._is_refused = False
        self._is_offered_upgrade = False
        self._is_lingering = False  # answered, and the body still comes
        self._active: RequestResponseCycle | None = None  # the one whose answer is being made
        self._chunks: ChunkWriter | None = None  # its
        self._deadline: asyncio.TimerHandle | None = None  # of the head or the body
        self._deadline_is_body = False
        self._write_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections:
            self._refuse(503, "too many connections are open")
        else:
            self._set_deadline(is_body=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        self._clear_write_deadline()
        self._tell_of_disconnect()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_in_head:
            self._head_bytes += len(data)
        else:
            self._framing_bytes += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if not self._is_refused:
            self._check_sizes()
            self._follow_message()

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parse_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(400, "this is not an HTTP/1.1 request")

    def _parse_without_upgrade(self, rest: bytes) -> None:
        """An upgrade may be ignored, and clients that always offer HTTP/2 rely on it; the parser takes the body for
        the other protocol, so the head is given to a new one without the offer."""
        if self._is_refused:
            return
        kept = [(name, value) for name, value in self.headers if name not in _OF_UPGRADES]
        lines = [b"%s %s HTTP/1.1" % (self.parser.get_method(), self.url), *(b"%s: %s" % each for each in kept)]
        self.parser = httptools.HttpRequestParser(self)
        self._parse(b"\r\n".join([*lines, b"connection: close", b"", rest]))

    def _check_sizes(self) -> None:
        if self._is_in_head:
            if self._head_bytes > self.bounds.head_bytes:
                self._refuse(431, "the request line and headers are too large")
        elif self._framing_bytes > self.bounds.head_bytes + _FRAMING_PER_BYTE * self._body_bytes:
            self._refuse(400, "the framing of the body is larger than the body")

    def _follow_message(self) -> None:
        """Keeps the deadline of what is awaited: a head, a body, or nothing (then uvicorn's idle time rules)."""
        if self._is_lingering:
            return
        if not self._has_begun:
            self._clear_deadline()
        elif self._deadline is None or self._deadline_is_body == self._is_in_head:
            self._set_deadline(is_body=not self._is_in_head)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_head:
            return  # a trailer: it must not become a header after the checks
        super().on_header(name, value)
        if len(self.headers) > self.bounds.headers:
            self._refuse(431, f"there are more than {self.bounds.headers} headers")

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._head_bytes = self._framing_bytes = self._body_bytes = 0
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.bounds.head_bytes:
            self._refuse(431, "the request line and headers are too large")
        elif len(self.pipeline) >= _MAX_PIPELINED:
            self._refuse(400, f"more than {_MAX_PIPELINED} requests wait on this connection")
        elif self.parser.should_upgrade() and self._get_upgrade() == b"websocket":
            self._refuse(426, "there are no WebSockets here")
        elif self.parser.get_method() == b"CONNECT":
            self._refuse(400, "this is no proxy")
        self._is_offered_upgrade = self.parser.should_upgrade()
        if not self._is_refused and not self._is_offered_upgrade:
            super().on_headers_complete()
            if self.pipeline:
                self.flow.resume_reading()  # else a client that goes away would not be noticed

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active = cycle
        cycle.transport = _Answering(self.transport, self._end_after_answer)
        self._chunks = ChunkWriter(cycle)
        cycle.scope["extensions"] = cast(Any, {EXTENSION: self._chunks})
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._framing_bytes -= len(body)
        if self._is_refused:
            return
        if self.pipeline and len(self.cycle.body) + len(body) > self.bounds.head_bytes:
            self._refuse(400, "a request that waits for another has too large a body")
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_head = True
        self._has_begun = False
        self._head_bytes = 0
        if not self._is_refused and not self._is_offered_upgrade:
            super().on_message_complete()
        if self._is_lingering:
            self._end_lingering()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_unread():
            self._end_after_answer()
        if self.transport.get_write_buffer_size():
            self._set_write_deadline()

    def _is_unread(self) -> bool:
        """Returns True if the request that was answered still sends its body."""
        return self._has_begun and not self._is_in_head and not self.pipeline

    def _end_after_answer(self) -> None:
        if self.transport.is_closing():
            return
        if not self._is_unread():
            self.transport.close()
            return
        self._unset_keepalive_if_required()
        self._is_lingering = True
        self.flow.resume_reading()
        self._replace_deadline(_LINGER_S, self.transport.close)

    def _end_lingering(self) -> None:
        """The unwanted body has ended after all."""
        self._is_lingering = False
        self._clear_deadline()
        if self.cycle.keep_alive:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_write_deadline()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._clear_write_deadline()
        if self._chunks is not None and self._chunks.on_room is not None:
            self._chunks.on_room()

    def _set_write_deadline(self) -> None:
        if self._write_deadline is None:
            self._write_deadline = self.loop.call_later(self.bounds.write_s, self._give_reader_up)

    def _give_reader_up(self) -> None:
        """The client did not read in time what it asked for; its request ends and its memory is freed."""
        self._write_deadline = None
        waiting = self.transport.get_write_buffer_size()
        if waiting:
            _log.info("a client reads too slowly", extra=fields(waiting_bytes=waiting))
            self.transport.abort()

    def _clear_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def _set_deadline(self, *, is_body: bool) -> None:
        self._deadline_is_body = is_body
        seconds = self.bounds.body_s if is_body else self.bounds.head_s
        self._replace_deadline(seconds, self._give_sender_up)

    def _replace_deadline(self, seconds: float, then: Callable[[], None]) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, then)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_sender_up(self) -> None:
        self._deadline = None
        if self._has_begun:
            what = "body" if self._deadline_is_body else "head"
            self._refuse(408, f"the {what} of the request did not end in time")
        else:
            self.transport.close()  # it never said anything

    def _refuse(self, status: int, message: str) -> None:
        """Answers if the answer cannot be taken for another request's, and closes in any case."""
        if self._is_refused:
            return
        self._is_refused = True
        self._clear_deadline()
        active = self._active
        is_answered = active is not None and not active.response_complete
        is_own_body = active is self.cycle and self._has_begun and not self._is_in_head
        if not is_answered or (is_own_body and active is not None and not active.response_started):
            self.transport.write(_whole_answer(status, message))
        self._tell_of_disconnect()
        self.transport.close()

    def _tell_of_disconnect(self) -> None:
        """Notifies every request: uvicorn notifies the newest alone, but a pipelined one hides the one that runs."""
        waiting = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        for cycle in (self._active, *waiting):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()


class _Answering(asyncio.Transport):
    """The part of a transport that uvicorn uses while it writes an answer, with an end of our own."""

    def __init__(self, transport: asyncio.Transport, end: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        self._end = end

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._end()


def _whole_answer(status: int, message: str) -> bytes:
    body = orjson.dumps(ApiError(status, message, code="bad_http").body())
    head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    return STATUS_LINE[status] + head + body


def bounded_protocol(bounds: Bounds) -> type[BoundedHttpProtocol]:
    return type("PlannedHttpProtocol", (BoundedHttpProtocol,), {"bounds": bounds})
