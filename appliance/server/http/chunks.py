"""The short way of a streamed answer's chunks: from the handler to the connection, past ASGI's `send`.

A `send` is a chain of coroutines through every layer of the application; for one token that is most of its cost. Layers
that only look at the head of an answer lose nothing. Who must see every byte takes EXTENSION out of the scope.
"""

from collections.abc import Callable

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

EXTENSION = "appliance.chunks"  # in scope["extensions"]: a ChunkWriter


class ChunkWriter:
    """Writes the chunks of one answer.

    `on_room` is called when a full connection has room again; `num_bytes` were written here.
    """

    __slots__ = ("_cycle", "num_bytes", "on_room")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self.num_bytes = 0
        self.on_room: Callable[[], None] | None = None

    @property
    def is_usable(self) -> bool:
        """Returns True if the head of the answer is sent, and chunks follow it."""
        cycle = self._cycle
        return cycle.response_started and not cycle.response_complete and cycle.chunked_encoding is True

    @property
    def is_full(self) -> bool:
        """Returns True if the client reads too slowly for more; False once it is gone."""
        return self._cycle.flow.write_paused

    def write(self, body: bytes) -> None:
        """One chunk; `body` is not empty. What a client that is gone would get is dropped."""
        if not self._cycle.disconnected:
            self.num_bytes += len(body)
            self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))


def chunk_writer(scope: Scope) -> ChunkWriter | None:
    """Returns the writer of an answer; None if the server offers none, or a middleware removed it."""
    found = scope.get("extensions", {}).get(EXTENSION)
    return found if isinstance(found, ChunkWriter) and found.is_usable else None


def num_chunk_bytes(scope: Scope) -> int:
    """Returns the number of bytes that were written by a ChunkWriter so far."""
    found = scope.get("extensions", {}).get(EXTENSION)
    return found.num_bytes if isinstance(found, ChunkWriter) else 0


def close_short_way(scope: Scope) -> None:
    """Removes the writer, so that every byte passes `send` from now on."""
    scope.get("extensions", {}).pop(EXTENSION, None)
