"""Messages between the keeper and each worker: msgpack after its length."""

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

import msgspec

from appliance.engine.messages import BootPhase
from appliance.service.adapter_sets import AdapterChange, Problem
from appliance.service.health import EngineState

_LENGTH = struct.Struct("<I")


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One value of a metric: a counter's or a part of a histogram's."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


class EngineNow(msgspec.Struct, frozen=True, kw_only=True, tag="engine"):
    """The state of the engine. endpoint: where it listens, while it takes requests or ends them."""

    state: EngineState
    reason: str
    num_restarts: int
    phases: list[BootPhase]
    endpoint: str | None = None


class UsePlan(msgspec.Struct, frozen=True, tag="use_plan"):
    """The worker answers by this plan from now on. The answer is Done."""

    id: int
    path: str


class Count(msgspec.Struct, frozen=True, tag="count"):
    """The worker reports its counts. The answer is Counted."""

    id: int


class Totals(msgspec.Struct, frozen=True, tag="totals"):
    """To Ask: the figures of all as Prometheus text, and the generation requests that are open."""

    id: int
    text: bytes
    load: int


class Terminate(msgspec.Struct, frozen=True, tag="terminate"):
    """Finish what is open, take nothing new, and end; a second time: end at once."""


class Retire(msgspec.Struct, frozen=True, tag="retire"):
    """Another server listens on the same socket: accept no more connections, finish what is open, and end."""


class BatchWanted(msgspec.Struct, frozen=True, tag="batch"):
    """A batch was made. From a worker, and to the one that runs batches."""


class Here(msgspec.Struct, frozen=True, tag="here"):
    """The worker is loaded, and accepts connections once it knows the state of the engine."""


class Up(msgspec.Struct, frozen=True, tag="up"):
    """The worker accepts connections."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The worker cannot run, and ends."""

    reason: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """reason: why it was refused; empty when it was done."""

    id: int
    reason: str = ""


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    """load: generation requests that are open here."""

    id: int
    samples: list[Sample]
    load: int


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """A client asks for the figures of all workers. The answer is Totals."""

    id: int


class ChangeSet(msgspec.Struct, frozen=True, tag="change_set"):
    """A client asks for another set of adapters. The answer is SetChanged."""

    id: int
    change: AdapterChange


class SetChanged(msgspec.Struct, frozen=True, tag="set_changed"):
    """problem: None when all processes serve the new set."""

    id: int
    problem: Problem | None = None
    reason: str = ""


ToWorker = EngineNow | UsePlan | Count | Totals | SetChanged | Terminate | Retire | BatchWanted
FromWorker = Here | Up | Failed | Done | Counted | Ask | ChangeSet | BatchWanted

_Out = TypeVar("_Out")
_In = TypeVar("_In")


class Channel(Generic[_Out, _In]):
    """One end of a socket pair. The other end is a process that we trust."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, incoming: msgspec.msgpack.Decoder[_In]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = incoming
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: _Out) -> None:
        """Never blocks; what the other end does not read is lost with it."""
        frame = self._encoder.encode(message)
        if not self._writer.is_closing():
            self._writer.write(_LENGTH.pack(len(frame)) + frame)

    async def messages(self) -> AsyncIterator[_In]:
        """Yields messages until the other end is gone."""
        try:
            while True:
                (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                yield self._decoder.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    def close(self) -> None:
        self._writer.close()


MemberChannel = Channel[ToWorker, FromWorker]
"""The keeper's end."""
WorkerChannel = Channel[FromWorker, ToWorker]
"""The worker's end."""
TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
FROM_WORKER: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
