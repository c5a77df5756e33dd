"""New weights in a running server: 32 streams while two checkpoints take turns, and what status and drift say."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.deploy.probe import ask_metrics
from appliance.deploy.weights import read_weights, weights_text
from tests.e2e.served import NAME, make_random_model, serving
from tests.server.harness import Server

NUM_STREAMS, NUM_UPDATES = 32, 6
PROMPTS = [f"prompt {number} of several that begin alike" for number in range(NUM_STREAMS)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for name, seed in (("a", 7), ("b", 8)):
        (folder / name).mkdir()
        make_random_model(folder / name, seed=seed)
    return {"a": folder / "a", "b": folder / "b"}


@pytest.fixture(scope="module")
def server(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("updated")
    with serving(folder, models["a"], f"model.weight_update_paths=[{models['a'].parent}]") as found:
        yield found


def update(server: Server, code: int = 200, **fields: Any) -> Any:
    with server.http() as http:
        answer = http.post("/update_weights_from_disk", json=fields, timeout=60.0)
    assert answer.status_code == code, answer.text
    return answer.json()


def body(prompt: str, **more: Any) -> dict[str, Any]:
    return {"model": NAME, "prompt": prompt, "max_tokens": 16, "temperature": 0, **more}


def ask(server: Server, prompt: str) -> str:
    with server.http() as http:
        return str(http.post("/v1/completions", json=body(prompt)).json()["choices"][0]["text"])


async def streamed(http: httpx.AsyncClient, prompt: str) -> str:
    text = ""
    async with http.stream("POST", "/v1/completions", json=body(prompt, stream=True)) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
    return text


async def under_updates(url: str, models: dict[str, Path]) -> list[tuple[str, str]]:
    """Keeps as many streams open as there are prompts until all updates are through; returns prompts and answers."""
    found: list[tuple[str, str]] = []
    over = asyncio.Event()
    async with httpx.AsyncClient(base_url=url, timeout=120.0, limits=httpx.Limits(max_connections=64)) as http:

        async def stream(prompt: str) -> None:
            while not over.is_set():
                found.append((prompt, await streamed(http, prompt)))

        streams = [asyncio.create_task(stream(prompt)) for prompt in PROMPTS]
        for number in range(NUM_UPDATES):
            answered = len(found)
            while len(found) < answered + NUM_STREAMS // 2:
                await asyncio.sleep(0.02)
            path = str(models["ba"[number % 2]])
            answer = await http.post("/update_weights_from_disk", json={"model_path": path})
            assert answer.status_code == 200, answer.text
        over.set()
        await asyncio.gather(*streams)
    return found


def test_every_stream_is_the_answer_of_one_model(server: Server, models: dict[str, Path]) -> None:
    expected = {}
    for name in "ba":
        update(server, model_path=str(models[name]))
        expected[name] = {prompt: ask(server, prompt) for prompt in PROMPTS}
    assert all(expected["a"][prompt] != expected["b"][prompt] for prompt in PROMPTS)
    found = asyncio.run(under_updates(server.url, models))
    of = {name: sum(expected[name][prompt] == text for prompt, text in found) for name in expected}
    assert sum(of.values()) == len(found), "no answer is of both"
    assert min(of.values()) > NUM_STREAMS


def test_the_version_is_told(server: Server, models: dict[str, Path]) -> None:
    told = update(server, model_path=str(models["b"]), weight_version="step-7")
    assert (told["success"], told["weight_version"]) == (True, "step-7")
    with server.http() as http:
        assert http.get("/get_weight_version").json()["sha256"] == told["sha256"]
    status = read_weights(ask_metrics(server.url) or "")
    assert status == {"version": told["version"], "sha256": told["sha256"], "label": "step-7"}
    assert "step-7" in str(weights_text(status))
    again = update(server, model_path=str(models["b"]), sha256=told["sha256"], abort_all_requests=True)
    assert again["version"] == told["version"] + 1


def test_what_cannot_be_is_refused_by_name(server: Server, models: dict[str, Path], tmp_path: Path) -> None:
    before = ask(server, PROMPTS[0])
    wrong = models["a"].parent / "wrong"
    wrong.mkdir(exist_ok=True)
    make_random_model(wrong, num_layers=1)
    for code, param, fields in (
        (403, "model_path", {"model_path": str(tmp_path)}),
        (400, "model_path", {"model_path": "relative"}),
        (400, "model_path", {"model_path": str(wrong)}),
        (400, "model_path", {"model_path": str(models["a"]), "sha256": "0" * 64}),
        (400, "load_format", {"model_path": str(models["a"]), "load_format": "dummy"}),
        (400, "is_async", {"model_path": str(models["a"]), "is_async": True}),
    ):
        assert update(server, code, **fields)["error"]["param"] == param
    assert ask(server, PROMPTS[0]) == before
