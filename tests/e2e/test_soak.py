"""Many clients, mixed requests, random disconnects: no error, no leaked block, an idle engine, flat memory.

Two seconds here; APPLIANCE_SOAK_SECONDS=120 makes it the long run.
"""

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

import httpx

from appliance.deploy.process import descendants, identify, resident_bytes
from appliance.engine.scripted import Script
from tests.server.harness import Server, running, says, wait_until

SECONDS = float(os.environ.get("APPLIANCE_SOAK_SECONDS", "2"))
NUM_CLIENTS = 64
MAY_GROW = 1.25  # memory after the soak over memory when every client had been served once


def test_soak(tmp_path: Path) -> None:
    script = Script(replies=[says("greet", "hello world")], step_seconds=0.001)
    with running(tmp_path, script, max_num_seqs=32, max_num_batched_tokens=256, num_blocks=128) as server:
        asyncio.run(clients(server.url, 0.5))
        before = memory(server)
        served, cut = asyncio.run(clients(server.url, SECONDS))
        assert served > NUM_CLIENTS / 2
        assert cut > 0
        wait_until(lambda: is_idle(server), "the engine is not idle afterwards")
        assert memory(server) < before * MAY_GROW


async def clients(url: str, seconds: float) -> tuple[int, int]:
    """Requests that were answered whole, and those whose client left."""
    deadline = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=NUM_CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=60.0, limits=limits) as http:
        counts = await asyncio.gather(*(client(http, random.Random(i), deadline) for i in range(NUM_CLIENTS)))
    return sum(served for served, _ in counts), sum(cut for _, cut in counts)


async def client(http: httpx.AsyncClient, rng: random.Random, deadline: float) -> tuple[int, int]:
    served = cut = 0
    while time.monotonic() < deadline:
        if await one(http, rng):
            served += 1
        else:
            cut += 1
    return served, cut


async def one(http: httpx.AsyncClient, rng: random.Random) -> bool:
    """Returns whether it was read to its end. Any error fails the test."""
    path, body = mixed(rng)
    leaves_after = rng.choice([None, None, 1, 5])  # chunks
    async with http.stream("POST", path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        chunks = 0
        async for line in response.aiter_lines():
            assert '"error"' not in line, line
            chunks += line.startswith("data:")
            if leaves_after is not None and chunks >= leaves_after:
                return False
    return True


def mixed(rng: random.Random) -> tuple[str, dict[str, Any]]:
    common = {"model": "scripted", "stream": rng.random() < 0.8, "max_tokens": rng.choice([1, 8, 40])}
    common |= rng.choice([{}, {"n": 3}, {"temperature": 0.7, "seed": 1}, {"stop": ["lo"]}])
    if rng.random() < 0.5:
        return "/v1/completions", {**common, "prompt": "x" * rng.randint(1, 120), "ignore_eos": True}
    return "/v1/chat/completions", {**common, "messages": [{"role": "user", "content": "greet"}]}


def memory(server: Server) -> int:
    process = identify(server.process.pid)
    assert process is not None
    return resident_bytes([process, *descendants(process)])


def is_idle(server: Server) -> bool:
    with server.http() as http:
        text = http.get("/metrics").text
    figures = {
        line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")
    }
    names = ("appliance_requests_running", "appliance_requests_waiting", "appliance_kv_cache_usage_ratio")
    return all(figures[name] == 0 for name in names)
