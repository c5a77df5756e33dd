"""The messages between an engine and its grammar sandbox: frames over a local socket."""

import socket
from typing import TypeVar

import msgspec

from appliance.engine.messages import Vocabulary

_LENGTH_BYTES = 4

Message = TypeVar("Message", bound=msgspec.Struct)


class TrialLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one constraint's trial.

    stack_bytes: less than an engine thread that compiles has, so that a constraint that passes cannot overflow there.
    memory_bytes: address space beyond that of the ready sandbox. slow_s: a trial that takes longer continues at a lower
    priority, as usual trials take milliseconds.
    """

    cpu_s: int = 3
    wall_s: float = 8.0
    memory_bytes: int = 256 << 20
    stack_bytes: int = 4 << 20
    slow_s: float = 0.5


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame to a sandbox."""

    backend: str
    vocab_size: int
    vocabulary: Vocabulary
    limits: TrialLimits


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a trial.

    text: the constraint passed, and the back-end compiles this text; None if there was no trial.
    grown_bytes: the memory that it took. reason, path: the GrammarError that refused it. died: the signal that ended
    the trial; 0 if it exited without a verdict.
    """

    text: str | None = None
    grown_bytes: int = 0
    reason: str | None = None
    path: str = ""
    died: int | None = None


def send(connection: socket.socket, message: msgspec.Struct) -> None:
    """Sends one frame. Raises OSError."""
    body = msgspec.msgpack.encode(message)
    connection.sendall(len(body).to_bytes(_LENGTH_BYTES, "big") + body)


def receive(connection: socket.socket, kind: type[Message]) -> Message | None:
    """Receives one frame; None if the other side closed, even within a frame. Raises OSError, TimeoutError."""
    head = _exactly(connection, _LENGTH_BYTES)
    body = None if head is None else _exactly(connection, int.from_bytes(head, "big"))
    return None if body is None else msgspec.msgpack.decode(body, type=kind)


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
