"""A deployment with adapters that change under streams, for tests and as a command:

    python -m tests.e2e.adapted --streams 64 --changes 20

prints what became of the streams and of the engine's memory, and ends with 1 if a stream broke or a token changed.
"""

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from appliance.deploy.drift import find_drift
from appliance.deploy.execute import ApplyResult, stop
from appliance.deploy.observe import observe
from appliance.deploy.process import descendants, resident_bytes
from appliance.deploy.state import DeploymentState
from appliance.plan.prepare import prepare
from tests.deploy.applying import apply, as_wanted
from tests.e2e.conftest import free_port
from tests.e2e.served import make_random_adapter, make_random_model

SPEC = """\
api_version: appliance/v1
kind: Deployment
name: adapted
model: {{source: ./model, served_names: [base]}}
cache: {{num_blocks: 1024}}
endpoints: {{http: {{port: {port}, api_server_count: {servers}}}}}
restart: {{policy: on-failure, max_restarts: 3, backoff: 100ms}}
speculative: {{method: [suffix, ngram]}}
lora:
  max_loras: 2
  max_cpu_loras: 3
  allow_runtime_updating: true
  allow_request_scale: true
  resolver_dir: ./shelf
  adapters: [{{name: a, source: ./a}}]
"""
A, B = "lora.adapters=[{name: a, source: ./a}]", "lora.adapters=[{name: b, source: ./b}]"
BOTH = "lora.adapters=[{name: a, source: ./a}, {name: b, source: ./b}]"


class Deployment:
    def __init__(self, folder: Path, servers: int) -> None:
        self.folder = folder
        (folder / "model").mkdir()
        make_random_model(folder / "model")
        for seed, name in enumerate(("a", "b", "c", "shelf/d", "shelf/e", "shelf/f"), 1):
            make_random_adapter(folder / name, seed)
        self.spec = folder / "spec.yaml"
        self.spec.write_text(SPEC.format(port=free_port(), servers=servers))
        self.state = DeploymentState(folder / "state", "adapted")
        self.state.create()

    def apply(self, *overrides: str) -> ApplyResult:
        return apply(self.state, as_wanted(prepare(self.spec, overrides)))

    @property
    def url(self) -> str:
        current = self.state.current()
        assert current is not None
        return current.url

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60.0)

    def models(self) -> dict[str, dict[str, Any]]:
        return {card["id"]: card for card in httpx.get(f"{self.url}/v1/models").json()["data"]}

    def text(self, model: str, **fields: Any) -> str:
        body = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0.0, "ignore_eos": True, **fields}
        answer = self.post("/v1/completions", model=model, **body)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text

    def drift(self) -> list[tuple[str, str]]:
        found = find_drift(self.state, observe(self.state))
        return [(each.kind, each.what) for each in found if each.kind == "adapter"]

    def memory_mib(self) -> dict[str, float]:
        """Returns the resident memory of the server, and of the engine without the blocks of its KV cache."""
        current = self.state.current()
        assert current is not None
        text = httpx.get(f"{self.url}/metrics").text
        touched = next(line for line in text.splitlines() if line.startswith("appliance_kv_cache_touched_bytes{"))
        sizes = {"server": resident_bytes([current.process]), "engine": resident_bytes(descendants(current.process))}
        sizes["engine"] -= int(float(touched.rsplit(" ", 1)[1]))
        return {name: round(size / 2**20, 1) for name, size in sizes.items()}

    def stop(self) -> None:
        if (current := self.state.current()) is not None:
            stop(self.state, current, None)

    def engine_pids(self) -> set[int]:
        current = self.state.current()
        assert current is not None
        return {each.pid for each in descendants(current.process)}


@dataclass
class Churn:
    """Streams that run while the set and limits change. texts: by model and prompt, one each if no token changed."""

    texts: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    num_streams: int = 0

    @property
    def num_changed(self) -> int:
        return sum(len(each) > 1 for each in self.texts.values())

    async def run(self, deployment: Deployment, at_once: int, num_changes: int) -> None:
        """Half of the streams have an adapter that stays in every set, half have none; another adapter comes and goes,
        and so do limits of requests and of drafts. Raises AssertionError for a stream that breaks."""
        changing = asyncio.create_task(asyncio.to_thread(self._change_all, deployment, num_changes))
        limits = httpx.Limits(max_connections=at_once)
        async with httpx.AsyncClient(base_url=deployment.url, timeout=120.0, limits=limits) as client:
            await asyncio.gather(*(self._work(client, number, changing) for number in range(at_once)))
        await changing

    def _change_all(self, deployment: Deployment, num_changes: int) -> None:
        for number in range(num_changes):
            overrides = (
                BOTH if number % 2 == 0 else A,
                f"endpoints.limits.max_n={1 + number % 3}",
                f"speculative.num_tokens={2 + number % 4}",
            )
            assert deployment.apply(*overrides).how == "reload"

    async def _work(self, client: httpx.AsyncClient, number: int, changing: asyncio.Task[None]) -> None:
        model, prompt = ("base", "a")[number % 2], number % 4
        while True:
            is_over = changing.done()
            self.texts.setdefault((model, prompt), set()).add(await _stream(client, model, prompt))
            self.num_streams += 1
            if is_over:
                return


async def _stream(client: httpx.AsyncClient, model: str, number: int) -> str:
    body = {"model": model, "prompt": f"A tale of {number}", "max_tokens": 48, "temperature": 0.8, "seed": number,
            "stream": True, "ignore_eos": True}  # fmt: skip
    text, is_done = "", False
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            is_done = is_done or line == "data: [DONE]"
            if line.startswith("data: {"):
                text += "".join(each["text"] for each in msgspec.json.decode(line[6:])["choices"])
    assert is_done, "the stream is broken"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description="Changes adapters and limits under streams.")
    parser.add_argument("--streams", type=int, default=64, help="at once")
    parser.add_argument("--changes", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        deployment = Deployment(Path(folder), servers=1)
        deployment.apply()
        try:
            asyncio.run(Churn().run(deployment, options.streams, 4))  # what is resident once stays
            deployment.apply()
            before, churn = deployment.memory_mib(), Churn()
            asyncio.run(churn.run(deployment, options.streams, options.changes))
            deployment.apply()
            after = deployment.memory_mib()
        finally:
            deployment.stop()
    changed = f"{churn.num_changed} of {len(churn.texts)} prompts with other tokens"
    print(f"{churn.num_streams} streams, none broken, {changed}")
    print(f"MiB before: {before}; after: {after}")
    return int(churn.num_changed > 0)


if __name__ == "__main__":
    sys.exit(main())
