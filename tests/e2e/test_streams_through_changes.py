"""Streams of a real engine while its deployment changes: no error, the same tokens, the same prefix cache."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
import pytest

from appliance.deploy.execute import ApplyResult, stop
from appliance.deploy.process import descendants
from appliance.deploy.state import DeploymentState
from appliance.plan.prepare import prepare
from tests.deploy.applying import apply, as_wanted
from tests.e2e.conftest import free_port
from tests.e2e.served import make_random_model

SPEC = """\
api_version: appliance/v1
kind: Deployment
name: random
model: {{source: ./model, served_names: [random]}}
cache: {{num_blocks: 4096}}
scheduler: {{max_num_seqs: 32}}
endpoints: {{http: {{port: {port}}}}}
"""
NUM_STREAMS, AT_ONCE, NUM_CHANGES = 200, 32, 20
SHARED = "a text that every prompt begins with, and that the prefix cache keeps; " * 3
PROMPTS = [f"{SHARED}{number:02d}" for number in range(25)]
LIVE = (
    "model.served_names=[random, other]",
    "endpoints.limits.max_n=3",
    "observability.logs.level=warning",
    "endpoints.cors.allowed_origins=[https://example.com]",
    "decoding.override_generation_config={top_k: 7}",
    "slo.ttft_p95=30s",
    "endpoints.http.enable_docs=false",
    "restart.max_restarts=2",
    "endpoints.limits.max_body_bytes=1MiB",
    "observability.metrics.enabled=true",
)


@dataclass
class Deployment:
    spec: Path
    state: DeploymentState

    def apply(self, *overrides: str) -> ApplyResult:
        return apply(self.state, as_wanted(prepare(self.spec, overrides)))


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with deployed_in(tmp_path) as deployment:
        yield deployment


@contextmanager
def deployed_in(folder: Path) -> Iterator[Deployment]:
    """A deployment of a random model that is ended with the context; nothing runs yet."""
    (folder / "model").mkdir()
    make_random_model(folder / "model")
    spec = folder / "spec.yaml"
    spec.write_text(SPEC.format(port=free_port()))
    state = DeploymentState(folder / "state", "random")
    state.create()
    try:
        yield Deployment(spec, state)
    finally:
        if (current := state.current()) is not None:
            stop(state, current, None)


@dataclass
class Load:
    """Streams, at least num_streams and until `is_over`, AT_ONCE at a time."""

    url: str
    is_over: Callable[[], bool] = lambda: True
    num_streams: int = NUM_STREAMS
    texts: dict[str, set[str]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    num_begun: int = 0

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=AT_ONCE)
        async with httpx.AsyncClient(base_url=self.url, timeout=60.0, limits=limits) as client:
            await asyncio.gather(*(self._work(client) for _ in range(AT_ONCE)))

    async def _work(self, client: httpx.AsyncClient) -> None:
        while self.num_begun < self.num_streams or not self.is_over():
            prompt = PROMPTS[self.num_begun % len(PROMPTS)]
            self.num_begun += 1
            try:
                self.texts.setdefault(prompt, set()).add(await _stream(client, prompt))
            except (httpx.HTTPError, AssertionError) as error:
                self.errors.append(repr(error))


async def _stream(client: httpx.AsyncClient, prompt: str) -> str:
    body = {
        "model": "random", "prompt": prompt, "stream": True, "temperature": 0.0, "max_tokens": 32, "ignore_eos": True
    }  # fmt: skip
    text, is_done = "", False
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            is_done = line == "data: [DONE]"
            if line.startswith("data: {"):
                text += "".join(each["text"] for each in msgspec.json.decode(line[6:])["choices"])
            if is_done:
                break
    assert is_done, "the stream is broken"
    return text


def prefix_figures(url: str) -> tuple[float, float]:
    """Prompt tokens that were looked up, and that were found."""
    found = {}
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if line.startswith("appliance_prefix_cache_"):
            found[line.split("{")[0].removeprefix("appliance_prefix_cache_")] = float(line.rsplit(" ", 1)[1])
    return found["queries_total"], found["hits_total"]


async def hit_rate(url: str, load: Load) -> float:
    before = prefix_figures(url)
    await load.run()
    after = prefix_figures(url)
    return (after[1] - before[1]) / (after[0] - before[0])


async def through(
    deployment: Deployment, url: str, changes: list[tuple[str, ...]], num_streams: int = NUM_STREAMS
) -> tuple[Load, list[ApplyResult]]:
    """A load, and the applies that land in it."""
    results: list[ApplyResult] = []
    load = Load(url, num_streams=num_streams)

    async def change() -> None:
        for overrides in changes:
            begun = load.num_begun
            results.append(await asyncio.to_thread(deployment.apply, *overrides))
            while load.num_begun <= begun and not load.errors:  # streams begin under every generation
                await asyncio.sleep(0.005)

    changing = asyncio.create_task(change())
    load.is_over = changing.done
    await load.run()
    await changing
    return load, results


async def test_live_changes(deployment: Deployment) -> None:
    first = deployment.apply()
    url, family = first.current.url, descendants(first.current.process)
    await Load(url).run()
    quiet = Load(url)
    quiet_rate = await hit_rate(url, quiet)
    assert 0.5 < quiet_rate < 1.0
    changes = [(LIVE[number % len(LIVE)],) for number in range(NUM_CHANGES)]
    before = prefix_figures(url)
    load, results = await through(deployment, url, changes)
    after = prefix_figures(url)
    assert load.errors == []
    assert load.num_begun >= NUM_STREAMS
    assert [result.how for result in results] == ["reload"] * NUM_CHANGES
    assert load.texts == quiet.texts
    assert all(len(texts) == 1 for texts in load.texts.values())
    assert (after[1] - before[1]) / (after[0] - before[0]) == quiet_rate
    assert (results[-1].current.process, descendants(first.current.process)) == (first.current.process, family)


async def test_a_restart_beside(deployment: Deployment) -> None:
    first = deployment.apply()
    url = first.current.url
    quiet = Load(url)
    await quiet.run()
    load, [result] = await through(deployment, url, [("scheduler.max_num_seqs=16",)])
    assert load.errors == []
    assert result.how == "beside"
    assert load.texts == quiet.texts
    assert result.current.process != first.current.process
