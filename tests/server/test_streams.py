"""The short way of a streamed answer: same bytes, one write a turn, and room is respected."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from appliance.engine.messages import ErrorKind
from appliance.engine.scripted import Script
from appliance.server.output.generation import _Push
from appliance.service.errors import RequestFailedError
from appliance.service.requests import TextOutput
from appliance.service.streams import OutputStream
from tests.server.harness import running, says
from tests.server.wire import connect, request, until_closed


class Pipe:
    """A connection that can be full. Has what _Push uses of a ChunkWriter."""

    def __init__(self) -> None:
        self.is_full = False
        self.written: list[bytes] = []
        self.on_room: Any = None

    def write(self, body: bytes) -> None:
        self.written.append(body)


def output(text: str) -> TextOutput:
    return TextOutput(index=0, text=text, token_ids=[1])


def texts(outputs: list[TextOutput]) -> bytes:
    """What is encoded is what came, with a bar between outputs."""
    return "|".join(each.text for each in outputs).encode()


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_one_write_a_turn_and_none_while_full() -> None:
    pipe, stream = Pipe(), OutputStream(lambda: None)
    ended = asyncio.create_task(_Push(stream, pipe, texts).ended())  # type: ignore[arg-type]  # a Pipe is enough
    await turn()
    stream.put(output("a"))
    stream.put(output("b"))
    assert pipe.written == []
    await turn()
    pipe.is_full = True
    stream.put(output("c"))
    await turn()
    stream.put(output("d"))
    stream.complete()
    await turn()
    assert pipe.written == [b"a|b"]
    assert not ended.done()
    pipe.is_full = False
    pipe.on_room()
    await ended
    assert pipe.written == [b"a|b", b"c|d"]
    assert pipe.on_room is None


async def test_a_stream_nobody_reads_stays_small() -> None:
    pipe, stream = Pipe(), OutputStream(lambda: None)
    pipe.is_full = True
    ended = asyncio.create_task(_Push(stream, pipe, texts).ended())  # type: ignore[arg-type]  # a Pipe is enough
    await turn()
    for _ in range(10_000):
        stream.put(output("x"))
    assert len(stream.take()) <= 257
    stream.close()
    pipe.is_full = False
    pipe.on_room()
    await ended


async def test_what_fails_reaches_who_waits() -> None:
    stream = OutputStream(lambda: None)
    stream.put(output("a"))
    stream.fail(RequestFailedError(ErrorKind.UNAVAILABLE, "gone"))
    pipe = Pipe()
    with pytest.raises(RequestFailedError, match="gone"):
        await _Push(stream, pipe, texts).ended()  # type: ignore[arg-type]  # a Pipe is enough
    assert pipe.written == [b"a"]

    def broken(outputs: list[TextOutput]) -> bytes:
        raise ZeroDivisionError

    other = OutputStream(lambda: None)
    other.put(output("a"))
    with pytest.raises(ZeroDivisionError):
        await _Push(other, Pipe(), broken).ended()  # type: ignore[arg-type]  # a Pipe is enough


def test_both_ways_say_the_same(tmp_path: Path) -> None:
    """Middleware sees every byte, so its server uses `send`. Both answer alike, and the log counts alike."""
    answers, sizes = [], []
    for number, middleware in enumerate(((), ("tests.server.middleware.Stamp",))):
        folder = tmp_path / str(number)
        folder.mkdir()
        script = Script(replies=[says("greet", "hello caf\u00e9 world")], step_seconds=0.02)
        with running(folder, script, middleware=list(middleware), access_log=True) as server:
            body = {"messages": [{"role": "user", "content": "greet"}], "stream": True, "request_id": "r" * 32}
            with connect(server) as connection:
                data = request("POST", "/v1/chat/completions", json.dumps(body).encode(), "connection: close")
                connection.sendall(data)
                answer = until_closed(connection)
            assert (b"x-stamp" in answer) is bool(middleware)
            _head, _, chunks = answer.partition(b"\r\n\r\n")
            assert chunks.endswith(b"\r\n0\r\n\r\n")
            body_bytes = b"".join(re.findall(rb"[0-9a-f]+\r\n(data: .*?\n\n)\r\n", chunks, re.S))
            answers.append(_joined(body_bytes))
            logged = re.search(r'"?bytes"?[=:] ?(\d+)', server.log.read_text())
            assert logged is not None
            sizes.append((int(logged[1]), len(body_bytes)))
    assert answers[0] == answers[1]
    assert all(told == sent for told, sent in sizes)


def _joined(body: bytes) -> tuple[str, list[Any]]:
    """The text, and the events without what time decides."""
    events = [json.loads(line[6:]) for line in body.split(b"\n\n") if line.startswith(b"data: {")]
    text = "".join(event["choices"][0]["delta"].pop("content") for event in events)
    for event in events:
        event.pop("created")
    assert body.endswith(b"data: [DONE]\n\n")
    return text, [event for place, event in enumerate(events) if place == 0 or event != events[place - 1]]
