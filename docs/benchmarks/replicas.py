"""What replicas cost or gain on one machine: one engine with all threads beside several with a share of them.

    python docs/benchmarks/replicas.py SPEC.yaml [--replicas 2] [--rounds 3]

Two servers, which take turns. For each number of clients: the tokens a second of all, and the time to the first token,
as medians of rounds. Then many conversations at once, whose turns the replicas' caches should know: the share of prompt
tokens that was found. SPEC.yaml needs a chat model.
"""

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec

from appliance.bench.workload import WORDS
from appliance.deploy.follow import EventReader
from appliance.plan.hashes import with_hashes
from appliance.plan.prepare import prepare

START_S = 120.0
READ_S = 0.05
SYSTEM = "You answer briefly. " * 10


class Work(NamedTuple):
    clients: int
    words: int
    answer: int
    requests: int


class Ran(NamedTuple):
    """rate: tokens of answers a second, of all. first_s: median time to the first token. hits: share of prompt tokens
    that were found in a prefix cache."""

    rate: float
    first_s: float
    hits: float


WORKS = (Work(1, 256, 64, 4), Work(4, 128, 64, 12), Work(8, 64, 64, 24), Work(16, 64, 64, 32))
TALKS, TURNS, AT_ONCE, ANSWER = 24, 5, 8, 32


class Client:
    """Streams chats of one server, and notes when tokens come."""

    def __init__(self, url: str, model: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=300.0)
        self._model = model
        self.first_s: list[float] = []

    async def say(self, messages: Sequence[dict[str, str]], answer: int) -> str:
        """Returns what the model says, of `answer` tokens."""
        body = {
            "model": self._model, "messages": list(messages), "max_tokens": answer, "temperature": 0.0,
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        began, text = time.perf_counter(), ""
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as stream:
            stream.raise_for_status()
            has_begun = False
            async for line in stream.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                said = msgspec.json.decode(line[6:])["choices"][0]["delta"].get("content") or ""
                if said and not has_begun:
                    has_begun = True
                    self.first_s.append(time.perf_counter() - began)
                text += said
        return text

    async def figures(self) -> dict[str, float]:
        """Returns counters of all replicas together."""
        found: dict[str, float] = {}
        for line in (await self._http.get("/metrics")).text.splitlines():
            if line.startswith("appliance_"):
                name = line.split("{")[0]
                found[name] = found.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
        return found

    async def shares(self) -> list[int]:
        """Returns how many requests each engine has answered."""
        found: dict[str, int] = {}
        for line in (await self._http.get("/metrics")).text.splitlines():
            if line.startswith("appliance_requests_finished_total{"):
                engine = line.split('engine="')[1].split('"')[0]
                found[engine] = found.get(engine, 0) + int(float(line.rsplit(" ", 1)[1]))
        return [found[engine] for engine in sorted(found)]


async def measured(client: Client, tasks: "list[asyncio.Task[None]]", num_tokens: int) -> Ran:
    before, began = await client.figures(), time.perf_counter()
    client.first_s = []
    await asyncio.gather(*tasks)
    seconds, after = time.perf_counter() - began, await client.figures()
    queries, hits = (
        after[name] - before[name]
        for name in ("appliance_prefix_cache_queries_total", "appliance_prefix_cache_hits_total")
    )
    return Ran(num_tokens / seconds, statistics.median(client.first_s), hits / queries)


async def crowd(client: Client, work: Work, number: int) -> Ran:
    """Prompts have nothing in common, and differ from round to round."""
    draw = random.Random(f"{work}/{number}")
    prompts = [" ".join(draw.choices(WORDS, k=work.words)) for _ in range(work.requests)]

    async def ask() -> None:
        while prompts:
            await client.say([{"role": "user", "content": prompts.pop()}], work.answer)

    tasks = [asyncio.create_task(ask()) for _ in range(work.clients)]
    return await measured(client, tasks, work.requests * work.answer)


async def conversations(client: Client, number: int) -> Ran:
    """Each turn has all turns before it; which conversation goes on next is drawn."""
    draw = random.Random(number)
    talks = [[{"role": "system", "content": f"{number}: {SYSTEM}"}] for _ in range(TALKS)]
    ready, left = list(range(TALKS)), [TURNS] * TALKS

    async def talk() -> None:
        while ready:
            talk = ready.pop(draw.randrange(len(ready)))
            talks[talk].append({"role": "user", "content": " ".join(draw.choices(WORDS, k=draw.randrange(20, 60)))})
            answer = await client.say(talks[talk], ANSWER)
            talks[talk].append({"role": "assistant", "content": answer})
            left[talk] -= 1
            if left[talk]:
                ready.append(talk)

    tasks = [asyncio.create_task(talk()) for _ in range(AT_ONCE)]
    return await measured(client, tasks, TALKS * TURNS * ANSWER)


@contextmanager
def server(spec: str, *overrides: str) -> Iterator[tuple[str, str]]:
    """Yields the URL of a ready server, and the model's name."""
    plan = prepare(spec, overrides).plan
    listen = msgspec.structs.replace(plan.serving.listen, host="127.0.0.1", port=0)
    plan = with_hashes(msgspec.structs.replace(plan, serving=msgspec.structs.replace(plan.serving, listen=listen)))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "plan.json"
        path.write_bytes(msgspec.json.encode(plan))
        log = stack.enter_context((Path(folder) / "log").open("wb"))
        command = [sys.executable, "-m", "appliance.server", "--plan", str(path), "--state", folder]
        process = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
        stack.callback(process.terminate)
        yield _url(EventReader(Path(folder) / "status.jsonl")), plan.model.served_names[0]


def _url(events: EventReader) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        for event in events.read():
            if event.name == "failed":
                raise SystemExit(event.values["reason"])
            if event.name == "ready":
                return str(event.values["url"])
        time.sleep(READ_S)
    raise SystemExit(f"the server was not ready after {START_S:g} s")


def told(what: str, pairs: Sequence[tuple[Ran, Ran]], replicas: int) -> str:
    """Returns medians of rounds; ratios above 1 are in favour of the replicas."""
    one, several = (
        [statistics.median(values) for values in zip(*side, strict=True)] for side in zip(*pairs, strict=True)
    )
    rate = statistics.median(many.rate / alone.rate for alone, many in pairs)
    first = statistics.median(alone.first_s / many.first_s for alone, many in pairs)
    return (
        f"{what}: {one[0]:.1f} tok/s with one engine, {several[0]:.1f} with {replicas} ({rate:.2f});"
        f" first token after {one[1] * 1e3:.0f} ms and {several[1] * 1e3:.0f} ms ({first:.2f});"
        f" found in caches {one[2]:.1%} and {several[2]:.1%}\n"
    )


async def run(one: Client, several: Client, replicas: int, rounds: int) -> None:
    for client in (one, several):  # packed weights are mapped, and code is loaded, by the first requests
        await asyncio.gather(*(client.say([{"role": "user", "content": f"Hello {each}"}], 8) for each in range(8)))
    for work in WORKS:
        pairs = [(await crowd(one, work, each), await crowd(several, work, each)) for each in range(rounds)]
        sys.stdout.write(told(f"{work.clients:2} clients", pairs, replicas))
        sys.stdout.flush()
    pairs = [(await conversations(one, each), await conversations(several, each)) for each in range(rounds)]
    sys.stdout.write(told(f"{TALKS} conversations of {TURNS} turns, {AT_ONCE} at once", pairs, replicas))
    sys.stdout.write(f"requests by engine: {await several.shares()}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with server(given.spec) as alone, server(given.spec, f"parallelism.data={given.replicas}") as together:
        asyncio.run(run(Client(*alone), Client(*together), given.replicas, given.rounds))


if __name__ == "__main__":
    main()
