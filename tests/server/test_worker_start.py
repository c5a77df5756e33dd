"""A worker process by itself, told by the test what its keeper would tell it."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.engine.scripted import Script
from appliance.server.workers.messages import FROM_WORKER, EngineNow, Here, MemberChannel, Up
from appliance.server.workers.page import SharedPage
from appliance.service.health import EngineState
from tests.server.harness import write_plan

ASKED = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
SLOW_S = 0.5


async def test_nobody_is_answered_before_it_knows_how_the_engine_is(tmp_path: Path) -> None:
    """Connections wait in the socket while one server replaces another: the first worker must not refuse them."""
    plan = write_plan(tmp_path, Script(), api_servers=1)
    page = SharedPage.make(tmp_path / "page", 1)
    listener = socket.create_server(("127.0.0.1", 0))
    caller = socket.create_connection(listener.getsockname())
    caller.sendall(ASKED)
    caller.setblocking(False)
    ours, theirs = socket.socketpair()
    given = {"plan": plan, "store": tmp_path, "page": tmp_path / "page", "listener": listener.fileno()}
    given |= {"channel": theirs.fileno(), "index": 0, "count": 1}
    worker = subprocess.Popen(
        [sys.executable, "-m", "appliance.server.workers", *(f"--{name}={value}" for name, value in given.items())],
        pass_fds=(listener.fileno(), theirs.fileno()),
    )
    theirs.close()
    reader, writer = await asyncio.open_connection(sock=ours)
    channel = MemberChannel(reader, writer, FROM_WORKER)
    try:
        said = channel.messages()
        assert isinstance(await asyncio.wait_for(anext(said), 20), Here)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.get_running_loop().sock_recv(caller, 100), SLOW_S)
        channel.send(EngineNow(state=EngineState.STARTING, reason="", num_restarts=0, phases=[]))
        assert isinstance(await asyncio.wait_for(anext(said), 20), Up)
        answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(caller, 100), 20)
        assert answer.startswith(b"HTTP/1.1 503")
    finally:
        channel.close()
        worker.kill()
        worker.wait()
        page.close()
        caller.close()
        listener.close()
