"""What a real engine's clients see when it dies, when they leave, and when the server gets a signal to end."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.served import NAME, figures, is_idle, make_random_model, num_open, serving
from tests.server.harness import Server, wait_until

SLOWNESS = float(os.environ.get("APPLIANCE_TEST_SLOWNESS", "1"))  # of this machine: a factor on the bounds
TOLD_WITHIN_S = 2.0 * SLOWNESS
# A machine with other work to do may take seconds to open sixteen requests, and none may have ended by then; and this
# process must read as fast as the engine writes, or what it sees lags behind: hence endless answers and many layers.
CONTEXT, NUM_LAYERS = 65_536, 24
LONG: dict[str, Any] = {"max_tokens": CONTEXT - 512, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_random_model(folder, CONTEXT, NUM_LAYERS)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    red_for_long = "restart.backoff=2s"  # enough that a busy machine's test sees it
    with serving(tmp_path_factory.mktemp("server"), model, red_for_long) as running:
        yield running


def async_client(server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60.0)


async def until(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Waits like wait_until, while the other tasks of the test go on."""
    deadline = time.monotonic() + timeout_s
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


class Clients:
    """Twelve streams and four whole answers, chat and completions, and when each of them failed."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self._client = client
        self.chunks = [0] * 16
        self.texts = [""] * 16

    async def run(self) -> list[tuple[openai.APIError | None, float]]:
        return await asyncio.gather(*map(self._outcome, range(16)))

    def all_flow(self) -> bool:
        return all(self.chunks[:12])

    async def _outcome(self, number: int) -> tuple[openai.APIError | None, float]:
        try:
            await (self._stream(number) if number < 12 else self._whole(number))
        except openai.APIError as error:
            return error, time.monotonic()
        return None, time.monotonic()

    async def _stream(self, number: int) -> None:
        if number % 2:
            async for part in await self._client.completions.create(
                model=NAME, prompt=f"{number}", stream=True, **LONG
            ):
                self.chunks[number] += 1
                self.texts[number] += part.choices[0].text
            return
        messages: list[Any] = [{"role": "user", "content": f"{number}"}]
        async for chunk in await self._client.chat.completions.create(
            model=NAME, messages=messages, stream=True, **LONG
        ):
            self.chunks[number] += 1
            self.texts[number] += chunk.choices[0].delta.content or ""

    async def _whole(self, number: int) -> None:
        await self._client.completions.create(model=NAME, prompt=f"{number}", n=2, **LONG)


def readiness_turned_red(server: Server) -> dict[str, Any]:
    """Runs in a thread of its own: the engine may be back before a test that reads sixteen streams has its turn."""
    deadline = time.monotonic() + 30.0
    with server.http() as http:
        while (answer := http.get("/readyz")).status_code == 200:
            assert time.monotonic() < deadline, "readiness stayed green"
    body: dict[str, Any] = answer.json()
    return body


def is_ready(server: Server) -> bool:
    with server.http() as http:
        return http.get("/readyz").status_code == 200


async def test_killed_engine_under_load(server: Server) -> None:
    async with async_client(server) as client:
        before = (await client.completions.create(model=NAME, prompt="x", temperature=0.0)).choices[0].text
        clients = Clients(client)
        running = asyncio.create_task(clients.run())
        await until(clients.all_flow, "the streams flow")
        await until(lambda: num_open(server) == 16, "all are open")
        engine = server.engine_pid()
        turning = asyncio.create_task(asyncio.to_thread(readiness_turned_red, server))
        os.kill(engine, signal.SIGKILL)
        killed = time.monotonic()
        red = await turning
        assert "SIGKILL" in red["reasons"][0]
        outcomes = await running
        assert all(error is not None for error, _ in outcomes)
        assert max(moment for _, moment in outcomes) - killed < TOLD_WITHIN_S
        await until(lambda: is_ready(server), "the engine is back by itself", timeout_s=60.0)
        assert server.engine_pid() != engine
        after = (await client.completions.create(model=NAME, prompt="x", temperature=0.0)).choices[0].text
        assert after == before
    wait_until(lambda: is_idle(server), "the new engine is idle")


async def test_disconnects_give_everything_back(server: Server) -> None:
    async with async_client(server) as client:
        clients = Clients(client)
        running = asyncio.create_task(clients.run())
        await until(clients.all_flow, "the streams flow")
        assert not is_idle(server)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await until(lambda: is_idle(server), "the engine goes on for nobody")
    assert figures(server)["requests_finished_total"] >= 16
    assert is_ready(server)


async def test_sigterm_lets_open_requests_finish(tmp_path: Path, model: Path) -> None:
    num_tokens, seen = 1500, 0
    with serving(tmp_path, model) as server:

        async def stream(client: openai.AsyncOpenAI) -> int:
            nonlocal seen
            count = 0
            options = {**LONG, "max_tokens": num_tokens, "stream_options": {"include_usage": True}}
            async for part in await client.completions.create(model=NAME, prompt="x", stream=True, **options):
                seen += 1
                count = part.usage.completion_tokens if part.usage else count
            return count

        async with async_client(server) as client:
            running = asyncio.gather(*(stream(client) for _ in range(4)))
            await until(lambda: seen > 4, "the streams flow")
            server.terminate()
            assert await running == [num_tokens] * 4
        assert await asyncio.to_thread(server.process.wait, 30) == 0
        events = server.events()
        assert "draining" in [event.get("state") for event in events]
        assert events[-1]["event"] == "stopped"
