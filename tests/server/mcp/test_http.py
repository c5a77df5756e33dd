"""Servers of tools over HTTP: the official package on a socket, and one that answers as it is told."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import orjson
import pytest

from appliance.plan.serving_types import ToolServerPlan
from appliance.server.mcp.messages import ToolServerError
from appliance.server.mcp.servers import ToolServer, ToolServers
from tests.e2e.conftest import free_port
from tests.server.mcp.test_servers import OFFICIAL

GREETING = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
TOOLS = {"tools": [{"name": "weather", "inputSchema": {"type": "object"}}]}


@asynccontextmanager
async def reached(url: str, **changes: Any) -> AsyncIterator[ToolServer]:
    settings = {"timeout_s": 30.0, "max_result_bytes": 2000, "max_calls": 4, **changes}
    servers = ToolServers([ToolServerPlan(name="s", url=url, **settings)])
    try:
        found = servers.find("s")
        assert found is not None
        yield found
    finally:
        await servers.close()


@contextmanager
def serving(*words: str) -> Iterator[str]:
    """The official package's server; yields the beginning of its address."""
    pytest.importorskip("mcp")
    port = free_port()
    process = subprocess.Popen([sys.executable, OFFICIAL, str(port), *words])
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/", timeout=1.0)
                break
            except httpx.HTTPError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def official() -> Iterator[str]:
    with serving() as address:
        yield f"{address}/mcp"


async def test_the_official_package_over_http(official: str) -> None:
    async with reached(official) as server:
        assert [tool.name for tool in await server.tools()] == ["weather", "now"]
        assert (await server.call("weather", {"city": "Oslo"})).text == "Oslo: 12 degrees"
        assert (await server.call("weather", {"city": "Atlantis"})).is_error


class Answers:
    """Answers each message: `call` is the whole HTTP answer of a call."""

    def __init__(self, call: bytes) -> None:
        self.call = call
        self.heads: list[str] = []
        self.num_greeted = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head.lower())
        length = next((int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length:")), 0)
        message = orjson.loads(await reader.readexactly(length) or b"{}")
        writer.write(self._answer(message))
        await writer.drain()
        writer.close()

    def _answer(self, message: Any) -> bytes:
        method = message.get("method")
        self.num_greeted += method == "initialize"
        if method == "tools/call":
            return self.call.replace(b"NUMBER", b"%d" % message["id"])
        result = {"initialize": GREETING, "tools/list": TOOLS}.get(method, {})
        return whole(orjson.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result}), "mcp-session-id: one")


def whole(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def answering(call: bytes, **changes: Any) -> AsyncIterator[tuple[ToolServer, Answers]]:
    answers = Answers(call)
    listener = await asyncio.start_server(answers, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        async with reached(f"http://127.0.0.1:{port}/mcp", **changes) as server:
            yield server, answers
    finally:
        listener.close()


EVENTS = (
    b": nothing\r\n\r\nevent: message\ndata: {\"jsonrpc\": \"2.0\", \"method\": \"notifications/progress\"}\n\n"
    b"data: {\"jsonrpc\": \"2.0\", \"id\": NUMBER,\ndata: \"result\": {\"content\": [{\"text\": \"well\"}]}}\n\n"
)  # fmt: skip


async def test_events_and_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_TOKEN", "abc")
    headers = {"Authorization": "Bearer ${env:TOOL_TOKEN}"}
    call = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + EVENTS
    async with answering(call, headers=headers) as (server, answers):
        assert (await server.call("weather", {})).text == "well"
        assert all("authorization: bearer abc" in head for head in answers.heads)
        assert "mcp-session-id: one" in answers.heads[-1]
        assert "mcp-protocol-version: 2025-06-18" in answers.heads[-1]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (whole(b"x" * (5 * 2**20)), "more than 4194304 bytes"), (whole(b"<html>"), "no message of the protocol"),
        (whole(b"", "location: http://169.254.169.254/", status="307 Temporary Redirect"), "answered 307"),
        (whole(b"", status="500 Internal Server Error"), "answered 500"), (whole(b""), "without an answer"),
        (b"garbage\r\n\r\n", "cannot be reached"),
    ],
)  # fmt: skip
async def test_a_fault_fails_its_call(call: bytes, problem: str) -> None:
    async with answering(call) as (server, answers):
        with pytest.raises(ToolServerError, match=problem):
            await server.call("weather", {})
        assert [tool.name for tool in await server.tools()] == ["weather"]
        assert answers.num_greeted == 1


async def test_a_session_that_is_forgotten_is_begun_again() -> None:
    async with answering(whole(b"", status="404 Not Found")) as (server, answers):
        with pytest.raises(ToolServerError, match="answered 404"):
            await server.call("weather", {})
        await server.tools()
        assert answers.num_greeted == 2
