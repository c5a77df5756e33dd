"""The client against a hand-made server: split events, coalesced events, errors, closed connections, reuse."""

import asyncio
from collections.abc import Awaitable, Callable

import orjson

from appliance.bench.asked import completion
from appliance.bench.record import MeasuredRequest
from appliance.bench.scenario import Scenario
from appliance.bench.sse import BenchClient, BenchTarget
from appliance.bench.workload import WorkItem

ASKED = completion(Scenario(name="s"), WorkItem(prompt=[1, 2, 3], output_len=4))
Answer = Callable[[asyncio.StreamWriter, dict[str, object]], Awaitable[None]]


def event(text: str) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"text": text}], "usage": None}) + b"\n\n"


USAGE = (
    b"data: "
    + orjson.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
    + b"\n\ndata: [DONE]\n\n"
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def served(answer: Answer, times: int = 1) -> tuple[list[MeasuredRequest], int]:
    """Sends ASKED `times` times to a server that answers so; the records, and how many connections it saw."""
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await answer(writer, orjson.loads(await reader.readexactly(length)))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        BenchClient(BenchTarget(url=f"http://127.0.0.1:{port}/v1", model="m", timeout_s=5)) as client,
    ):
        records = [await client.send(ASKED) for _ in range(times)]
    return records, connections


async def test_events_split_anywhere_are_counted_once() -> None:
    stream = b"".join(event(t) for t in "abcd") + USAGE

    async def answer(writer: asyncio.StreamWriter, body: dict[str, object]) -> None:
        assert body["stream_options"] == {"include_usage": True}
        writer.write(HEAD)
        for start in range(0, len(stream), 7):
            writer.write(chunk(stream[start : start + 7]))
            await writer.drain()
        writer.write(chunk(b""))

    (record, again), connections = await served(answer, times=2)
    for one in (record, again):
        assert (one.error, sum(one.token_counts), one.output_tokens, one.input_tokens) == (None, 4, 4, 3)
    assert connections == 1


async def test_an_error_status_and_its_text_are_kept() -> None:
    async def answer(writer: asyncio.StreamWriter, _: dict[str, object]) -> None:
        body = b'{"error":{"message":"no such model"}}'
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    (record,), _ = await served(answer)
    assert "404" in str(record.error)
    assert "no such model" in str(record.error)


async def test_a_connection_lost_in_the_middle_is_an_error() -> None:
    async def answer(writer: asyncio.StreamWriter, _: dict[str, object]) -> None:
        writer.write(HEAD + chunk(event("a")))
        await writer.drain()
        writer.close()

    (record,), _ = await served(answer)
    assert "closed" in str(record.error)


async def test_an_idle_connection_that_was_closed_is_replaced() -> None:
    answers = 0

    async def answer(writer: asyncio.StreamWriter, _: dict[str, object]) -> None:
        nonlocal answers
        answers += 1
        if answers == 2:  # the connection is used again, and lost before a byte of answer
            writer.close()
            return
        writer.write(HEAD + chunk(event("a") + USAGE) + chunk(b""))

    records, connections = await served(answer, times=2)
    assert [record.error for record in records] == [None, None]
    assert connections == 2


async def test_an_error_event_in_the_stream_fails_the_request() -> None:
    async def answer(writer: asyncio.StreamWriter, _: dict[str, object]) -> None:
        writer.write(HEAD + chunk(event("a") + b'data: {"error":{"message":"engine died"}}\n\n') + chunk(b""))

    (record,), _ = await served(answer)
    assert "engine died" in str(record.error)


async def test_a_refused_connection_is_told() -> None:
    async with BenchClient(BenchTarget(url="http://127.0.0.1:9", model="m")) as client:
        record = await client.send(ASKED)
    assert record.error is not None
    assert "Error" in record.error
