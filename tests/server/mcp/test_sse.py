"""Servers of the older transport: the official package on a socket, and one that does what it is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
import pytest

from appliance.server.mcp.events import EventParser, ServerEvent
from appliance.server.mcp.messages import ToolServerError
from appliance.server.mcp.servers import ToolServer
from tests.server.mcp.test_http import GREETING, TOOLS, reached, serving, whole

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
PING = {"jsonrpc": "2.0", "id": 99, "method": "ping"}


def test_events_are_the_same_however_a_stream_is_cut() -> None:
    stream = b": hello\r\nevent: endpoint\r\ndata: /m?s=1\r\n\r\ndata: {\ndata:}\n\nevent: x\n\n"
    expected = [ServerEvent("endpoint", b"/m?s=1"), ServerEvent("message", b"{\n}")]
    for size in range(1, len(stream)):
        parser = EventParser()
        parts = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [event for part in parts for event in parser.feed(part)] == expected
        assert parser.num_waiting == 0


async def test_the_official_package_by_the_older_transport() -> None:
    with serving("sse") as address:
        async with reached(f"{address}/sse") as server:
            assert [tool.name for tool in await server.tools()] == ["weather", "now"]
            assert (await server.call("weather", {"city": "Oslo"})).text == "Oslo: 12 degrees"
            assert (await server.call("weather", {"city": "Atlantis"})).is_error
            both = await asyncio.gather(server.call("now", {}), server.call("weather", {"city": "Rome"}))
            assert [each.text for each in both] == ["noon", "Rome: 12 degrees"]


class Older:
    """Has a stream of events at /sse. `first`: its first event. `call`: what it does when a tool is called."""

    def __init__(self, first: bytes, call: str) -> None:
        self.first = first
        self.call = call
        self.heads: list[str] = []
        self.replies: list[Any] = []
        self.streams: list[asyncio.StreamWriter] = []
        self._stream: asyncio.StreamWriter | None = None

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head.lower())
        if head.startswith("GET /sse "):
            self._stream = writer
            self.streams.append(writer)
            writer.write(STREAM + self.first)
            await writer.drain()
            return
        length = next((int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length:")), 0)
        message = orjson.loads(await reader.readexactly(length) or b"{}")
        is_known = head.startswith("POST /messages?session=1 ")
        writer.write(whole(b"", status="202 Accepted" if is_known else "405 Method Not Allowed"))
        await writer.drain()
        writer.close()
        if is_known:
            self._answer(message)

    def _answer(self, message: Any) -> None:
        assert self._stream is not None
        method = message.get("method")
        if method == "tools/call" and self.call == "ends":
            self._stream.close()
        elif method == "tools/call" and self.call == "huge":
            self._stream.write(b"data: " + b"x" * (5 * 2**20))
        elif method == "tools/call" and self.call == "garbage":
            self._stream.write(b"data: <html>\n\n")
        elif method is None:
            self.replies.append(message)
        elif "id" in message:
            answers = {"initialize": GREETING, "tools/list": TOOLS, "tools/call": {"content": [{"text": "well"}]}}
            for each in (PING, {"jsonrpc": "2.0", "id": message["id"], "result": answers[method]}):
                self._stream.write(b"event: message\ndata: " + orjson.dumps(each) + b"\n\n")


@asynccontextmanager
async def older(
    first: bytes = b"event: endpoint\ndata: /messages?session=1\n\n", call: str = "answers", **changes: Any
) -> AsyncIterator[tuple[ToolServer, Older]]:
    found = Older(first, call)
    listener = await asyncio.start_server(found, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        async with reached(f"http://127.0.0.1:{port}/sse", **changes) as server:
            yield server, found
    finally:
        listener.close()
        for stream in found.streams:
            stream.close()
            with suppress(OSError):
                await stream.wait_closed()


async def test_one_that_takes_no_post_is_asked_for_its_stream() -> None:
    async with older(headers={"Authorization": "Bearer abc"}) as (server, found):
        assert (await server.call("weather", {})).text == "well"
        assert [tool.name for tool in await server.tools()] == ["weather"]
        assert [head.split(" http")[0] for head in found.heads[:3]] == [
            "post /sse", "get /sse", "post /messages?session=1",
        ]  # fmt: skip
        assert all("authorization: bearer abc" in head for head in found.heads)
        assert found.replies[0] == {"jsonrpc": "2.0", "id": 99, "result": {}}
        assert len(found.streams) == 1


@pytest.mark.parametrize(
    ("call", "problem"),
    [("ends", "closed the connection"), ("huge", "more than 4194304 bytes"), ("garbage", "no message of the protocol")],
)
async def test_a_stream_that_fails_fails_its_calls_and_is_begun_again(call: str, problem: str) -> None:
    async with older(call=call) as (server, found):
        with pytest.raises(ToolServerError, match=problem):
            await server.call("weather", {})
        found.call = "answers"
        assert (await server.call("weather", {})).text == "well"
        assert len(found.streams) == 2


@pytest.mark.parametrize(
    ("address", "problem"), [(b"http://169.254.169.254/messages", "at another origin"), (b"\xff", "no address")]
)
async def test_messages_go_to_the_origin_of_the_spec_or_nowhere(address: bytes, problem: str) -> None:
    async with older(b"event: endpoint\ndata: " + address + b"\n\n") as (server, found):
        with pytest.raises(ToolServerError, match=problem):
            await server.tools()
        assert [head for head in found.heads if "messages" in head] == []


async def test_a_stream_that_says_nothing_is_given_up_in_time() -> None:
    async with older(b": hello\n\n", timeout_s=0.5) as (server, _):
        with pytest.raises(ToolServerError, match="took more than"):
            await server.tools()
