"""A soak: many mixed clients that come and go, then a check that they left nothing open.

    python -m tests.e2e.soak --url http://127.0.0.1:8000 --pid PID --clients 64 --seconds 120

prints a report and ends with 1 when something did not hold. PID is the server's; `appliance status` prints both. Blocks
of the KV cache that are not resident cost no memory, so a large cache grows for a while, up to its planned size: what
is compared is the memory beyond the blocks that are (appliance_kv_cache_touched_bytes).
"""

import argparse
import asyncio
import json
import random
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai

IDLE_WITHIN_S = 60.0
MAY_GROW, SLACK_BYTES = 1.05, 8 << 20  # memory afterwards against memory after the warm-up
TEXT = "a model is served when many clients read what it writes and some of them leave before the end"
SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.7, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    {"temperature": 1.0, "stop": ["e", "\n\n"]},
    {"temperature": 1.0, "extra_body": {"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}},
    {"temperature": 0.5, "extra_body": {"ignore_eos": True, "min_tokens": 4}},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """`max_requests` bounds the whole of it, whatever the time."""

    url: str
    pid: int
    clients: int = 64
    seconds: float = 120.0
    warmup_seconds: float = 20.0
    max_words: int = 120
    max_tokens: int = 64
    max_requests: int = 1_000_000
    seed: int = 0


@dataclass(slots=True)
class Counts:
    finished: int = 0
    left: int = 0
    tokens: int = 0
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def requests(self) -> int:
        return self.finished + self.left + sum(self.errors.values())

    def failed(self, reason: str) -> None:
        self.errors[reason] = self.errors.get(reason, 0) + 1


@dataclass(slots=True)
class Report:
    """Bytes are resident memory of the server and its descendants; private: without mapped files; kv: of these the KV
    cache's."""

    counts: Counts
    seconds: float
    seconds_to_idle: float | None
    left_behind: dict[str, float]
    restarts: int
    bytes_warm: int
    bytes_end: int
    private_bytes_warm: int
    private_bytes_end: int
    kv_bytes_warm: int
    kv_bytes_end: int

    def faults(self) -> list[str]:
        """What did not hold; empty is good."""
        found = [f"{count} x {error}" for error, count in self.counts.errors.items()]
        found += [f"{name} is {value} afterwards" for name, value in self.left_behind.items() if value]
        if self.restarts:
            found.append(f"the engine was started again {self.restarts} times")
        warm, end = self.private_bytes_warm - self.kv_bytes_warm, self.private_bytes_end - self.kv_bytes_end
        if end > warm * MAY_GROW + SLACK_BYTES:
            found.append(f"memory beyond the KV cache grew from {warm} to {end} bytes")
        if not (self.counts.finished and self.counts.left):
            found.append(f"nothing was tried: {self.counts.finished} finished, {self.counts.left} left")
        return found

    def as_json(self) -> str:
        return json.dumps({**asdict(self), "faults": self.faults()}, indent=2)


async def soak(plan: Soak) -> Report:
    """Warms up, runs, waits until nothing is open, and measures. Raises ValueError for a server elsewhere."""
    if urlsplit(plan.url).hostname not in ("127.0.0.1", "::1", "localhost"):
        raise ValueError(f"{plan.url} is not on this machine")
    await _clients(plan, plan.warmup_seconds, random.Random(plan.seed))
    await _seconds_to_idle(plan.url)
    kv_bytes = await _settled_kv_bytes(plan.url)
    warm = *memory(plan.pid), kv_bytes
    started = time.monotonic()
    counts = await _clients(plan, plan.seconds, random.Random(plan.seed + 1))
    seconds = time.monotonic() - started
    to_idle, left_behind = await _seconds_to_idle(plan.url)
    kv_bytes = await _settled_kv_bytes(plan.url)
    end = *memory(plan.pid), kv_bytes
    async with httpx.AsyncClient(base_url=plan.url) as http:
        restarts = (await http.get("/readyz")).json()["restarts"]
    sizes = (size for before_and_after in zip(warm, end, strict=True) for size in before_and_after)
    return Report(counts, seconds, to_idle, left_behind, restarts, *sizes)


async def _clients(plan: Soak, seconds: float, rng: random.Random) -> Counts:
    """All clients at once. When the time is over, all that still read leave."""
    counts = Counts()
    deadline = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=plan.clients)
    async with httpx.AsyncClient(limits=limits, timeout=120.0) as http:
        options: dict[str, Any] = {"base_url": f"{plan.url}/v1", "api_key": "none", "max_retries": 0}
        async with openai.AsyncOpenAI(**options, http_client=http) as client:
            model = (await client.models.list()).data[0].id
            seeds = [rng.random() for _ in range(plan.clients)]
            await asyncio.gather(
                *(_Client(plan, client, model, random.Random(seed), counts).run(deadline) for seed in seeds)
            )
    return counts


@dataclass(slots=True)
class _Client:
    """One after another: a request that is read to its end, or left at some chunk, or at the deadline."""

    plan: Soak
    client: openai.AsyncOpenAI
    model: str
    rng: random.Random
    counts: Counts

    async def run(self, deadline: float) -> None:
        while time.monotonic() < deadline and self.counts.requests < self.plan.max_requests:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    is_finished = await self._request()
            except TimeoutError:
                is_finished = False
            except openai.APIError as error:
                self.counts.failed(f"{type(error).__name__}: {error}")
                continue
            if is_finished is not None:
                self.counts.finished += is_finished
                self.counts.left += not is_finished

    async def _request(self) -> bool | None:
        """Returns whether it was read to its end; None if it ended too early. Raises openai.APIError."""
        rng = self.rng
        text = " ".join(rng.choices(TEXT.split(), k=rng.randint(1, self.plan.max_words)))
        n = rng.choice((1, 1, 1, 2, 4))
        options = {"model": self.model, "max_tokens": rng.randint(4, self.plan.max_tokens), "n": n}
        options |= rng.choice(SAMPLING) | {"stream": True, "stream_options": {"include_usage": True}}
        if rng.random() < 0.5:
            chunks = await self.client.completions.create(
                prompt=text, logprobs=2 if rng.random() < 0.2 else None, **options
            )
        else:
            chunks = await self.client.chat.completions.create(messages=[{"role": "user", "content": text}], **options)
        leaves_after = rng.randint(1, self.plan.max_tokens) if rng.random() < 0.3 else None
        async with chunks:
            return await self._read(chunks, n, leaves_after)

    async def _read(self, chunks: Any, n: int, leaves_after: int | None) -> bool | None:
        ended: list[int] = []
        num_chunks, usage = 0, None
        async for chunk in chunks:
            num_chunks += 1
            ended += [choice.index for choice in chunk.choices if choice.finish_reason]
            usage = chunk.usage or usage
            if num_chunks == leaves_after:
                return False
        if sorted(ended) != list(range(n)) or usage is None:
            self.counts.failed(f"a stream of {n} ended with {sorted(ended)} and usage {usage}")
            return None
        self.counts.tokens += usage.completion_tokens
        return True


async def _seconds_to_idle(url: str) -> tuple[float | None, dict[str, float]]:
    """How long until nothing is open (None: it never was), and the last figures."""
    started = time.monotonic()
    async with httpx.AsyncClient(base_url=url) as http:
        while True:
            left = await _left_behind(http)
            if not any(left.values()):
                return time.monotonic() - started, left
            if time.monotonic() - started > IDLE_WITHIN_S:
                return None, left
            await asyncio.sleep(0.05)


async def _left_behind(http: httpx.AsyncClient) -> dict[str, float]:
    """What is open, runs or waits, and the share of blocks in use."""
    left = await _figures(http, "requests_running", "requests_waiting", "kv_cache_usage_ratio")
    load = await http.get("/load")  # not every deployment counts it
    return left | ({"server_load": float(load.json()["server_load"])} if load.status_code == 200 else {})


async def _settled_kv_bytes(url: str) -> int:
    """Memory of the KV cache that is resident. An idle engine makes more of it so; its next answer tells how much."""
    last, size = -1, 0
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        body = {"model": model, "prompt": "a", "max_tokens": 1}
        while size != last:
            await asyncio.sleep(0.2)
            (await http.post("/v1/completions", json=body)).raise_for_status()
            last, size = size, int((await _figures(http, "kv_cache_touched_bytes"))["kv_cache_touched_bytes"])
    return size


async def _figures(http: httpx.AsyncClient, *names: str) -> dict[str, float]:
    lines = (await http.get("/metrics")).text.splitlines()
    return {
        name: sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"appliance_{name}{{"))
        for name in names
    }


def memory(pid: int) -> tuple[int, int]:
    """Resident bytes of a process and its descendants: all of them, and without mapped files."""
    whole, private = 0, 0
    for each in _family(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{each}/status").read_text().splitlines())
            whole += int(lines["VmRSS"].split()[0]) << 10
            private += int(lines["RssAnon"].split()[0]) + int(lines["RssShmem"].split()[0]) << 10
    return whole, private


def _family(pid: int) -> list[int]:
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        children += map(int, task.read_text().split())
    return [pid, *(each for child in children for each in _family(child))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--pid", required=True, type=int, help="of the server")
    for name in ("clients", "max-words", "max-tokens", "max-requests", "seed"):
        parser.add_argument(f"--{name}", type=int, default=argparse.SUPPRESS)
    for name in ("seconds", "warmup-seconds"):
        parser.add_argument(f"--{name}", type=float, default=argparse.SUPPRESS)
    report = asyncio.run(soak(Soak(**vars(parser.parse_args()))))
    print(report.as_json())
    return 1 if report.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
