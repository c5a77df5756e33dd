"""The way to an engine in another process; `thread_link` has the way to one in this process."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec
import zmq

from appliance.base.log import fields, logger
from appliance.engine.messages import EngineEvent, EngineMessage
from appliance.engine.wire import MAX_MESSAGE_BYTES, decode_event, encode

EventHandler = Callable[[EngineEvent], None]

_RECONNECT_MS = 20  # while the engine's process has not bound its socket yet

_log = logger("service")


class EngineLink(Protocol):
    """Events arrive on the event loop that made the link, in order."""

    def send(self, message: EngineMessage) -> None:
        """Never blocks."""

    def close(self) -> None: ...


class SocketLink:
    """A DEALER socket, driven by its file descriptor without a polling thread."""

    def __init__(self, endpoint: str, on_event: EventHandler) -> None:
        """Connects in the background: the engine may bind later."""
        self._on_event = on_event
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.connect(endpoint)
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._drain)
        self._closed = False

    def send(self, message: EngineMessage) -> None:
        if self._closed:
            return
        self._socket.send(encode(message), zmq.NOBLOCK)
        # The descriptor signals edges: sending may have consumed one that announced a message to read.
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._loop.call_soon(self._drain)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._descriptor)
            self._socket.close()
            self._context.term()

    def _drain(self) -> None:
        while not self._closed:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                event = decode_event(frame)
            except msgspec.DecodeError as error:
                _log.error("an engine event could not be read", extra=fields(reason=str(error)))
                continue
            self._on_event(event)
