"""What crosses between an engine and the sandbox of its grammars: frames over a socket of the machine."""

import socket
from typing import TypeVar

import msgspec

from appliance.engine.messages import Vocabulary

_LENGTH_BYTES = 4

Message = TypeVar("Message", bound=msgspec.Struct)


class TrialLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the trial of one constraint may use.

    stack_bytes: half of what any thread of the engine has, so that what passes here overflows nothing there.
    memory_bytes: address space beyond what the sandbox has when it is ready. slow_s: a trial that takes longer goes on
    at the lowest priority, for usual ones take milliseconds.
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
    """What a trial led to.

    text: the constraint passed, and this is what the back-end is to compile; None where there was no trial.
    grown_bytes: the memory that it took. reason, path: the back-end's GrammarError. died: the signal that ended the
    trial; 0 when it ended by itself without a word.
    """

    text: str | None = None
    grown_bytes: int = 0
    reason: str | None = None
    path: str = ""
    died: int | None = None


def send(connection: socket.socket, message: msgspec.Struct) -> None:
    """Raises OSError."""
    body = msgspec.msgpack.encode(message)
    connection.sendall(len(body).to_bytes(_LENGTH_BYTES, "big") + body)


def receive(connection: socket.socket, kind: type[Message]) -> Message | None:
    """None where the other side has closed, at the beginning of a frame or within one. Raises OSError, TimeoutError."""
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
