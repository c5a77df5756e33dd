"""A client of an engine process over its real socket, and a way to start one."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TypeVar

import msgspec
import zmq

from appliance.engine.messages import EngineEvent, EngineMessage, Hello, OutputBatch, Ready, SequenceOutput
from appliance.engine.wire import decode_event, encode
from appliance.plan.types import EnginePlan

PATIENCE_S = 20.0  # a test fails when nothing at all comes for so long
Event = TypeVar("Event")


class Client:
    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint)

    def send(self, message: EngineMessage) -> None:
        self._socket.send(encode(message))

    def send_frames(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def receive(self) -> EngineEvent:
        if not self._socket.poll(PATIENCE_S * 1000):
            raise TimeoutError("the engine says nothing")
        return decode_event(self._socket.recv())

    def wait_for(self, kind: type[Event], when: Callable[[Event], bool] = lambda event: True) -> Event:
        while True:
            event = self.receive()
            if isinstance(event, kind) and when(event):
                return event

    def ready(self) -> Ready:
        self.send(Hello())
        return self.wait_for(Ready)

    def outputs(self, request_id: str) -> Iterator[SequenceOutput]:
        """Yields outputs until every sequence of the request has ended."""
        open_indices = {0}
        while open_indices:
            for output in self.wait_for(OutputBatch).outputs:
                if output.request_id == request_id:
                    open_indices.add(output.index)
                    yield output
                    if output.finish_reason is not None:
                        open_indices.discard(output.index)

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_plan(folder: Path, plan: EnginePlan) -> Path:
    path = folder / "plan.json"
    path.write_bytes(msgspec.json.encode(plan))
    return path


def command(plan: Path, endpoint: str, *more: str) -> list[str]:
    engine = [sys.executable, "-m", "appliance.engine", "--plan", str(plan), "--socket", endpoint]
    return [*engine, "--heartbeat", "0.05", *more]


@contextmanager
def engine(folder: Path, plan: EnginePlan) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A running engine process and its endpoint; killed at the end if it still runs."""
    endpoint = f"ipc://{folder}/engine.sock"
    reader, writer = os.pipe()
    run = command(write_plan(folder, plan), endpoint, "--parent-fd", str(reader))
    process = subprocess.Popen(run, pass_fds=(reader,), stderr=subprocess.PIPE)
    os.close(reader)
    try:
        yield process, endpoint
    finally:
        os.close(writer)
        process.kill()
        process.communicate()
