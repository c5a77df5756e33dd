"""The engine's socket thread: it reads messages, sends events and heartbeats, and notices clients that went away.

It runs beside the loop, so it decodes messages and sends events while a step runs, and sends heartbeats even if the
loop hangs.
"""

import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import zmq

from appliance.base.log import fields, logger
from appliance.engine.adapter_messages import AdaptersServed
from appliance.engine.events import Events
from appliance.engine.messages import BadMessage, BootPhase, EngineEvent, EngineMessage, Fatal, Heartbeat, Ready
from appliance.engine.pulse import Pulse
from appliance.engine.wire import MAX_MESSAGE_BYTES, QUEUED_EVENTS, decode_message, encode

_log = logger("engine")
_POLL_LIMIT = 1000  # messages taken in a row before events get their turn
_LAST_WORDS_S = 10.0  # a failed engine waits this long for a client, to tell it the reason


@dataclass(frozen=True, slots=True)
class ClientGone:
    """A client's connection is closed, or the client no longer reads."""


@dataclass(frozen=True, slots=True)
class DrainAndStop:
    """SIGTERM came: finish open requests within `seconds`, then end."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ModelLost:
    """What runs the model ended while nothing asked it."""

    reason: str


@dataclass(frozen=True, slots=True)
class StepWanted:
    """Other replicas run a step, in which this one takes part."""


Intake = tuple[bytes, EngineMessage | ClientGone | DrainAndStop | ModelLost | StepWanted]


@dataclass(slots=True)
class _Announcements:
    """The boot events so far, for clients that connect later."""

    phases: dict[str, BootPhase] = field(default_factory=dict)
    ready: Ready | None = None
    fatal: Fatal | None = None
    adapters: AdaptersServed | None = None

    def note(self, event: EngineEvent) -> None:
        if isinstance(event, BootPhase):
            self.phases[event.name] = event
        elif isinstance(event, Ready):
            self.ready = event
        elif isinstance(event, Fatal):
            self.fatal = event
        elif isinstance(event, AdaptersServed):
            self.adapters = event

    def all(self) -> list[EngineEvent]:
        return [*self.phases.values(), *(event for event in (self.adapters, self.ready, self.fatal) if event)]


class Front(threading.Thread):
    """`intake` receives (client, message) in order. `orphaned` is called when the parent's pipe closes."""

    def __init__(
        self,
        endpoint: str,
        intake: "queue.SimpleQueue[Intake]",
        pulse: Callable[[], Pulse],
        *,
        heartbeat_s: float,
        parent_fd: int | None,
        orphaned: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Binds at once, so that a bad endpoint raises here (zmq.ZMQError)."""
        super().__init__(name="engine-front", daemon=True)
        self._intake = intake
        self._pulse = pulse
        self._heartbeat_s = heartbeat_s
        self._parent_fd = parent_fd
        self._orphaned = orphaned
        self._clock = clock
        self._outbox: deque[tuple[bytes | None, EngineEvent]] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._stopping = False
        self._tells_until = 0.0
        self._clients: set[bytes] = set()
        self._announced = _Announcements()
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.SNDHWM, QUEUED_EVENTS)
        self._socket.setsockopt(zmq.RCVHWM, QUEUED_EVENTS)
        self._socket.setsockopt(zmq.LINGER, 2000)
        self._socket.bind(endpoint)

    def emit(self, events: Events) -> None:
        """Sends events to their clients. Callable from any thread; returns at once."""
        if events:
            self._outbox.extend(events)
            os.eventfd_write(self._wake_fd, 1)

    def broadcast(self, event: EngineEvent) -> None:
        """Sends an event to every client; boot events go to later clients too."""
        self._outbox.append((None, event))
        os.eventfd_write(self._wake_fd, 1)

    def stop(self) -> None:
        """Sends what was emitted so far, then ends the thread."""
        self._stopping = True
        os.eventfd_write(self._wake_fd, 1)
        self.join()
        self._socket.close()
        self._context.term()
        os.close(self._wake_fd)

    def run(self) -> None:
        try:
            self._serve()
        except BaseException:  # noqa: BLE001 - an unreachable engine must end, so that its supervisor sees it
            _log.exception("the engine's socket thread died")
            os._exit(1)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_fd, zmq.POLLIN)
        if self._parent_fd is not None:
            poller.register(self._parent_fd, zmq.POLLIN)
        next_beat = self._clock()
        while True:
            wait = max(0.0, next_beat - self._clock())
            ready = dict(poller.poll(math.ceil(wait * 1000)))
            if self._parent_fd in ready:
                self._orphaned()
                return
            if self._wake_fd in ready:
                os.eventfd_read(self._wake_fd)
            stopping = self._stopping
            self._send_outbox()
            if stopping and not self._has_something_to_tell():
                return
            if self._socket in ready:
                self._receive()
            if self._clock() >= next_beat:
                next_beat = self._clock() + self._heartbeat_s
                self._beat()

    def _has_something_to_tell(self) -> bool:
        """Returns True while a failed engine waits for its first client: the server may still be importing modules."""
        if self._announced.fatal is None or self._clients:
            return False
        self._tells_until = self._tells_until or self._clock() + _LAST_WORDS_S
        return self._clock() < self._tells_until

    def _receive(self) -> None:
        for _ in range(_POLL_LIMIT):
            try:
                client, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if client not in self._clients:
                self._clients.add(client)
                for event in self._announced.all():
                    self._send(client, encode(event))
            try:
                if len(frames) != 1:
                    raise msgspec.DecodeError(f"{len(frames)} frames; a message is one")
                message = decode_message(frames[0])
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                self._send(client, encode(BadMessage(f"unreadable engine message: {error}")))
                continue
            self._intake.put((client, message))

    def _send_outbox(self) -> None:
        outbox = self._outbox
        while outbox:
            client, event = outbox.popleft()
            frame = encode(event)
            if client is not None:
                self._send(client, frame)
                continue
            self._announced.note(event)
            for each in tuple(self._clients):
                self._send(each, frame)

    def _beat(self) -> None:
        pulse = self._pulse()
        # In this order: no step gets an earlier one's age.
        step, since, now = pulse.step, pulse.since or pulse.turn, self._clock()
        frame = encode(Heartbeat(now, step, now - since if since else 0.0, pulse.is_paused))
        for client in tuple(self._clients):
            self._send(client, frame)

    def _send(self, client: bytes, frame: bytes) -> None:
        if client not in self._clients:
            return
        try:
            self._socket.send_multipart([client, frame], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            self._clients.discard(client)
            self._intake.put((client, ClientGone()))
            _log.info("client gone", extra=fields(client=client.hex(), reason=str(error)))
