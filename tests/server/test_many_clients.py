"""Many clients at once, some of which leave: every answer is right, and nothing is left behind."""

import asyncio
import random
from pathlib import Path

import httpx

from appliance.engine.scripted import Script
from tests.server.harness import Server, running, says, wait_until

NUM_CLIENTS, NUM_ROUNDS = 64, 2
ANSWERS = {f"question {place}": f"answer {place} caf\u00e9 " * 3 for place in range(8)}


async def ask(http: httpx.AsyncClient, rng: random.Random) -> None:
    """One request of a random kind; a third of them is left in the middle."""
    question = rng.choice(list(ANSWERS))
    body = {
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "stop": rng.choice([None, "never seen"]),
    }
    text, leaves_after = "", rng.choice([1, 200, 10**6])
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                text += _content(line)
            if len(text) >= leaves_after:
                assert ANSWERS[question].startswith(text)
                return
    assert text == ANSWERS[question]


def _content(line: str) -> str:
    import json

    content: str = json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content") or ""
    return content


async def crowd(server: Server) -> None:
    rng = random.Random(5)
    limits = httpx.Limits(max_connections=NUM_CLIENTS)
    async with httpx.AsyncClient(base_url=server.url, timeout=60.0, limits=limits) as http:

        async def client() -> None:
            for _ in range(NUM_ROUNDS):
                await ask(http, rng)

        await asyncio.gather(*[client() for _ in range(NUM_CLIENTS)])


def test_a_crowd_leaves_nothing_behind(tmp_path: Path) -> None:
    script = Script(replies=[says(question, answer) for question, answer in ANSWERS.items()])
    with running(tmp_path, script, server_load_tracking=True, max_num_seqs=16) as server:
        asyncio.run(crowd(server))
        with server.http() as http:

            def is_idle() -> bool:
                text = http.get("/metrics").text
                label = '{engine="0",model_name="scripted"} 0.0'
                names = ("requests_running", "requests_waiting", "kv_cache_usage_ratio")
                return all(f"appliance_{name}{label}" in text for name in names)

            wait_until(is_idle, "nothing runs, waits or holds blocks")
            assert http.get("/load").json() == {"server_load": 0}
            assert http.get("/readyz").json()["restarts"] == 0
