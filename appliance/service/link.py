"""Ways to reach an engine: a ZeroMQ socket to its process, or a thread in this one. Same messages, same events."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Protocol

import msgspec
import zmq

from appliance.base.log import fields, logger
from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import EngineEvent, EngineMessage, Fatal
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


class ThreadLink:
    """An engine in a thread of this process, for batch, bench and the Python API."""

    def __init__(self, engine: InprocEngine, on_event: EventHandler) -> None:
        self._engine = engine
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[EngineMessage | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def send(self, message: EngineMessage) -> None:
        self._inbox.put(message)

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._take_in():
                events = self._engine.receive()
                if events:
                    self._loop.call_soon_threadsafe(self._deliver, events)
        except Exception as error:  # noqa: BLE001 - whatever it was, every open request must be told
            _log.exception("the in-process engine died")
            self._loop.call_soon_threadsafe(self._on_event, Fatal(f"{type(error).__name__}: {error}"))
        finally:
            self._engine.close()

    def _take_in(self) -> bool:
        """Hands over what waits; blocks when the engine is idle. False when the link was closed."""
        while True:
            try:
                message = self._inbox.get(block=not self._engine.has_work)
            except queue.Empty:
                return True
            if message is None:
                return False
            self._engine.send(message)

    def _deliver(self, events: list[EngineEvent]) -> None:
        for event in events:
            self._on_event(event)
