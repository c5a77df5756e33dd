"""A server of tools may do what it likes: it hurts the call that is open, and the next one finds it well again."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from appliance.plan.serving_types import ToolServerPlan
from appliance.server.mcp.messages import ToolServerError
from appliance.server.mcp.servers import ToolServer, ToolServers

FAULTY = str(Path(__file__).parent / "faulty.py")
OFFICIAL = str(Path(__file__).parent / "official.py")


def planned(script: str, *arguments: str, **changes: Any) -> ToolServerPlan:
    command = (sys.executable, script, *arguments)
    settings = {"command": command, "timeout_s": 30.0, "max_result_bytes": 2000, "max_calls": 4, **changes}
    return ToolServerPlan(name="s", **settings)


@asynccontextmanager
async def served(*arguments: str, script: str = FAULTY, **changes: Any) -> AsyncIterator[ToolServer]:
    servers = ToolServers([planned(script, *arguments, **changes)])
    try:
        found = servers.find("s")
        assert found is not None
        yield found
    finally:
        await servers.close()


async def test_the_official_package_is_understood() -> None:
    pytest.importorskip("mcp")
    async with served(script=OFFICIAL) as server:
        weather, now = await server.tools()
        assert (weather.name, weather.description, weather.is_read_only) == ("weather", "The weather in a city.", True)
        assert (weather.inputSchema["required"], now.is_read_only) == (["city"], False)
        assert (await server.call("weather", {"city": "Oslo"})).text == "Oslo: 12 degrees"
        failed = await server.call("weather", {"city": "Atlantis"})
        assert (failed.is_error, failed.text.startswith("Error executing tool")) == (True, True)


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("dies", "has ended"), ("garbage", "not of the protocol"), ("huge", "more than 4194304 bytes"),
        ("large", "the result has 3000 bytes; 2000 are allowed"),
    ],
)  # fmt: skip
async def test_a_fault_fails_its_call_and_no_other(
    fault: str, problem: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("appliance"), "propagate", True)
    async with served(fault) as server:
        for _ in range(2):  # a server that has died is there again
            assert [tool.name for tool in await server.tools()] == ["weather"]
            with pytest.raises(ToolServerError, match=problem):
                await server.call("weather", {})
    assert (fault != "dies") or "out of order" in str([vars(each) for each in caplog.records])  # for its operator alone


async def test_one_that_says_nothing_is_ended_and_started_anew() -> None:
    async with served("hangs", timeout_s=3.0) as server:
        await server.tools()
        with pytest.raises(ToolServerError, match="the call took more than 3 s"):
            await server.call("weather", {})
        assert [tool.name for tool in await server.tools()] == ["weather"]


async def test_lists_are_bounded() -> None:
    async with served("many") as server:
        with pytest.raises(ToolServerError, match="more than 1024 tools"):
            await server.tools()


async def test_one_that_cannot_be_started_says_so_and_is_not_tried_at_once() -> None:
    async with served(command=("/no/such/program",)) as server:
        with pytest.raises(ToolServerError, match="cannot be started"):
            await server.tools()
        with pytest.raises(ToolServerError, match="it is tried again in"):
            await server.tools()


async def test_what_is_no_text_is_told_by_its_kind() -> None:
    async with served("image") as server:
        assert (await server.call("weather", {})).text == '{"type":"image","mimeType":"image/png"}'


async def test_its_environment_is_what_the_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_TOKEN", "abc")
    monkeypatch.setenv("OUR_SECRET", "xyz")
    async with served("environment", env={"TOKEN": "Bearer ${env:TOOL_TOKEN}"}) as server:
        said = (await server.call("weather", {})).text
    assert '"TOKEN": "Bearer abc"' in said
    assert "xyz" not in said


async def test_nothing_is_left_behind() -> None:
    async with served("parent", timeout_s=10.0) as server:
        pid = int((await server.call("weather", {})).text.split()[1])
        assert _of_session(pid)
    await _until(lambda: not _of_session(pid))


async def test_another_plan_keeps_what_it_has_as_it_is() -> None:
    plan = planned(FAULTY, "well")
    servers = ToolServers([plan])
    try:
        first = servers.find("s")
        assert first is not None
        pid = (await first.call("weather", {})).text
        servers.use([plan])
        assert servers.find("s") is first
        assert (await first.call("weather", {})).text == pid
        servers.use([planned(FAULTY, "well", max_calls=5)])
        assert servers.find("s") is not first
        await _until(lambda: not _of_session(int(pid.split()[1])))
        servers.use([])
        assert servers.find("s") is None
    finally:
        await servers.close()


def _of_session(leader: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split() if entry.isdigit() else []
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields and int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(entry))
    return found


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
