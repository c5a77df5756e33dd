"""Adapters of a server that runs: apply changes them, requests load and unload them, and streams do not notice."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from appliance.base.errors import ApplyError
from appliance.cli import history as history_verb
from appliance.cli import status as status_verb
from appliance.deploy.drift import find_drift
from appliance.deploy.execute import ApplyResult, stop
from appliance.deploy.observe import observe
from appliance.deploy.process import descendants
from appliance.deploy.state import DeploymentState
from appliance.plan.prepare import prepare
from tests.deploy.applying import apply, as_wanted
from tests.e2e.conftest import free_port
from tests.e2e.served import NUM_ADAPTED, make_random_adapter, make_random_model
from tests.server.harness import wait_until

SPEC = """\
api_version: appliance/v1
kind: Deployment
name: adapted
model: {{source: ./model, served_names: [base]}}
cache: {{num_blocks: 1024}}
endpoints: {{http: {{port: {port}, api_server_count: {servers}}}}}
restart: {{policy: on-failure, max_restarts: 3, backoff: 100ms}}
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

    def engine_pids(self) -> set[int]:
        current = self.state.current()
        assert current is not None
        return {each.pid for each in descendants(current.process)}


@pytest.fixture(scope="module", params=[1, 2])
def deployment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    found = Deployment(tmp_path_factory.mktemp(f"adapted{request.param}"), request.param)
    found.apply()
    yield found
    if (current := found.state.current()) is not None:
        stop(found.state, current, None)


@pytest.fixture(autouse=True)
def as_written(deployment: Deployment) -> None:
    """Each test begins with the set of the spec."""
    deployment.apply()
    assert list(deployment.models()) == ["base", "a"]


def test_apply_changes_the_set_in_the_running_engine(deployment: Deployment) -> None:
    pids, texts = deployment.engine_pids(), {"base": deployment.text("base"), "a": deployment.text("a")}
    result = deployment.apply(B)
    assert (result.how, result.actions[0].apply) == ("reload", "adapters")
    assert "adapters.served.a" in result.actions[0].cause
    texts["b"] = deployment.text("b")
    assert len({*texts.values()}) == 3
    gone = deployment.post("/v1/completions", model="a", prompt="x")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
    card = deployment.models()["b"]
    assert (card["effective_modules"], card["verified"]) == (f"{NUM_ADAPTED}/{NUM_ADAPTED}", True)
    deployment.apply(BOTH)
    assert {name: deployment.text(name) for name in texts} == texts
    assert deployment.engine_pids() == pids, "no process was started again"


def test_a_bad_adapter_leaves_what_serves(deployment: Deployment) -> None:
    text = deployment.text("a")
    make_random_adapter(deployment.folder / "weak", 8, strength=1e-30)
    with pytest.raises(ApplyError, match="changes nothing that the model says"):
        deployment.apply("lora.adapters=[{name: b, source: ./weak}]")
    assert list(deployment.models()) == ["base", "a"]
    assert deployment.text("a") == text
    assert deployment.apply().how == "kept"


def test_requests_load_and_unload_and_apply_takes_it_back(deployment: Deployment) -> None:
    body = {"lora_name": "new", "lora_path": str(deployment.folder / "c")}
    loaded = deployment.post("/v1/load_lora_adapter", **body)
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'new' added successfully.")
    text = deployment.text("new")
    assert text not in (deployment.text("base"), deployment.text("a"))
    again = deployment.post("/v1/load_lora_adapter", **body)
    assert again.status_code == 400
    assert "has already been loaded" in again.json()["error"]["message"]
    body["lora_path"] = str(deployment.folder / "b")
    assert deployment.post("/v1/load_lora_adapter", **body, load_inplace=True).status_code == 200
    assert deployment.text("new") != text, "the prefix cache is of the adapter before"
    assert deployment.drift() == [("adapter", "new")]
    assert deployment.post("/v1/unload_lora_adapter", lora_name="a").text == (
        "Success: LoRA adapter 'a' removed successfully."
    )
    assert list(deployment.models()) == ["base", "new"]
    assert deployment.post("/v1/unload_lora_adapter", lora_name="a").status_code == 404
    assert deployment.apply().how == "reload"
    assert (list(deployment.models()), deployment.drift()) == (["base", "a"], [])


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"lora_name": "x"}, 400, "Both 'lora_name' and 'lora_path' must be provided."),
        ({"lora_name": "x", "lora_path": "here"}, 400, "absolute path"),
        ({"lora_name": "x", "lora_path": "{folder}/nothing"}, 404, "No adapter found"),
        ({"lora_name": "x", "lora_path": "{folder}/model"}, 400, "no adapter_config.json"),
        ({"lora_name": "x", "lora_path": "{folder}/large"}, 400, "rank 32"),
        ({"lora_name": "base", "lora_path": "{folder}/b"}, 400, "the base model's name"),
    ],
)
def test_what_cannot_be_loaded_is_refused(
    deployment: Deployment, fields: dict[str, str], status: int, message: str
) -> None:
    make_random_adapter(deployment.folder / "large", 3, rank=32)
    body = {name: value.replace("{folder}", str(deployment.folder)) for name, value in fields.items()}
    answer = deployment.post("/v1/load_lora_adapter", **body)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    assert list(deployment.models()) == ["base", "a"]


def test_no_more_are_loaded_than_may_be_in_memory(deployment: Deployment) -> None:
    for name in ("b", "c"):
        path = str(deployment.folder / name)
        assert deployment.post("/v1/load_lora_adapter", lora_name=name, lora_path=path).status_code == 200
    full = deployment.post("/v1/load_lora_adapter", lora_name="d", lora_path=str(deployment.folder / "shelf/d"))
    assert full.status_code == 400
    assert "3 adapters may be in memory" in full.json()["error"]["message"]


def test_an_unknown_name_is_looked_for_in_the_folder(deployment: Deployment) -> None:
    texts = {name: deployment.text(name) for name in ("d", "e")}
    assert len({*texts.values()}) == 2
    assert list(deployment.models()) == ["base", "a", "d", "e"]
    deployment.text("f")  # one of those that were found gives way; the spec's own does not
    names = list(deployment.models())
    assert (len(names), names[:2]) == (4, ["base", "a"])
    assert deployment.text("d") == texts["d"]
    for name in ("nothing", "../a", ".hidden", "x/d"):
        assert deployment.post("/v1/completions", model=name, prompt="x").status_code == 404


def test_a_request_chooses_an_adapter_with_a_scale(deployment: Deployment) -> None:
    base, whole = deployment.text("base"), deployment.text("a")
    assert deployment.text("base", lora=[{"name": "a"}]) == whole
    assert deployment.text("a", lora=[{"id": 0, "scale": 0.0}]) == base
    assert deployment.text("a", lora=[{"name": "a", "scale": 0.5}]) not in (base, whole)
    assert httpx.get(f"{deployment.url}/lora-adapters").json() == [
        {"id": 0, "name": "a", "path": str(deployment.folder / "a"), "scale": 1.0}
    ]
    for lora, param in (
        ([{"name": "a"}, {"name": "a"}], "lora"), ([{"name": "a", "id": 0}], "lora[0]"), ([{"id": 7}], "lora[0].id"),
        ([{"name": "none"}], "lora[0].name"), ([{"name": "a", "scale": 1e9}], "lora[0].scale"),
    ):  # fmt: skip
        answer = deployment.post("/v1/completions", model="base", prompt="x", lora=lora)
        assert answer.status_code in (400, 404)
        assert answer.json()["error"]["param"] == param


def test_figures_are_by_adapter_and_go_with_it(deployment: Deployment) -> None:
    deployment.text("a")
    found = httpx.get(f"{deployment.url}/metrics").text
    for line in (
        'appliance_adapter_tokens_total{adapter="a",kind="generation",model_name="base"}',
        'appliance_adapter_requests_total{adapter="a",model_name="base"}',
        f'appliance_adapter_info{{adapter="a",effective_modules="{NUM_ADAPTED}",',
        'vllm:lora_requests_info{max_lora="2",model_name="base"',
        'appliance_adapters_served{model_name="base"} 1.0',
    ):
        assert line in found
    deployment.apply(B)
    assert 'adapter="a"' not in httpx.get(f"{deployment.url}/metrics").text


def test_an_engine_that_is_started_again_serves_the_newest_set(deployment: Deployment) -> None:
    path = str(deployment.folder / "c")
    assert deployment.post("/v1/load_lora_adapter", lora_name="c", lora_path=path).status_code == 200
    texts = {name: deployment.text(name) for name in ("a", "c")}
    [engine] = [
        pid for pid in deployment.engine_pids() if "appliance.engine" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    make_random_adapter(deployment.folder / "a", 1)  # the same content again
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: httpx.get(f"{deployment.url}/readyz").status_code == 503, 30.0)
    wait_until(lambda: httpx.get(f"{deployment.url}/readyz").status_code == 200, 60.0)
    assert {name: deployment.text(name) for name in texts} == texts


def test_verbs_tell_of_adapters(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("APPLIANCE_STATE", str(deployment.folder / "state"))
    assert status_verb.run("adapted", True) == 0
    [found] = json.loads(capsys.readouterr().out)
    [adapter] = found["adapters"]
    assert (adapter["name"], adapter["effective_modules"]) == ("a", f"{NUM_ADAPTED}/{NUM_ADAPTED}")
    assert status_verb.run("adapted") == 0
    assert f"a {NUM_ADAPTED}/{NUM_ADAPTED} modules (verified)" in capsys.readouterr().out
    deployment.apply(B)
    history_verb.run("adapted")
    assert "adapters.served.b" in capsys.readouterr().out


NUM_STREAMS, NUM_CHANGES = 12, 20


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


def test_no_token_changes_in_streams_through_many_changes(deployment: Deployment) -> None:
    """Half of the streams have an adapter that stays in every set, half have none; another adapter comes and goes, and
    so do limits."""
    changes = [
        (BOTH if number % 2 == 0 else A, f"endpoints.limits.max_n={1 + number % 3}") for number in range(NUM_CHANGES)
    ]

    async def run() -> tuple[dict[tuple[str, int], set[str]], int]:
        texts: dict[tuple[str, int], set[str]] = {}
        num_streams = 0
        async with httpx.AsyncClient(base_url=deployment.url, timeout=60.0) as client:
            changing = asyncio.create_task(_change_all(deployment, changes))

            async def work(number: int) -> None:
                nonlocal num_streams
                model = ("base", "a")[number % 2]
                while True:
                    is_over = changing.done()
                    texts.setdefault((model, number % 4), set()).add(await _stream(client, model, number % 4))
                    num_streams += 1
                    if is_over:
                        return

            await asyncio.gather(*(work(number) for number in range(NUM_STREAMS)))
            await changing
        return texts, num_streams

    texts, num_streams = asyncio.run(run())
    assert num_streams > NUM_STREAMS
    assert len(texts) == 4
    assert all(len(each) == 1 for each in texts.values()), "a token changed"


async def _change_all(deployment: Deployment, changes: list[tuple[str, ...]]) -> None:
    for overrides in changes:
        result = await asyncio.to_thread(deployment.apply, *overrides)
        assert result.how == "reload"
