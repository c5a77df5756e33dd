"""Adapters of a server that runs: apply changes them, requests load and unload them, and streams do not notice."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from appliance.base.errors import ApplyError
from appliance.cli import history as history_verb
from appliance.cli import status as status_verb
from tests.e2e.adapted import BOTH, B, Churn, Deployment
from tests.e2e.served import NUM_ADAPTED, make_random_adapter
from tests.server.harness import wait_until


@pytest.fixture(scope="module", params=[1, 2])
def deployment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    found = Deployment(tmp_path_factory.mktemp(f"adapted{request.param}"), request.param)
    found.apply()
    yield found
    found.stop()


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


def test_a_request_has_several_adapters(deployment: Deployment) -> None:
    deployment.apply(BOTH)
    alone = {name: deployment.text(name) for name in ("base", "a", "b")}
    together = deployment.text("base", lora=[{"name": "a"}, {"name": "b"}])
    assert together not in alone.values()
    assert deployment.text("b", lora=[{"name": "b"}, {"name": "a"}]) == together, "their order does not matter"
    assert deployment.text("base", lora=[{"name": "a"}, {"name": "b", "scale": 0.0}]) == alone["a"]
    assert deployment.text("base", lora=[{"name": "a"}, {"name": "b", "scale": -1.0}]) != together
    assert {name: deployment.text(name) for name in alone} == alone
    deployment.apply(BOTH, "lora.max_rank=4")
    refused = deployment.post("/v1/completions", model="base", prompt="x", lora=[{"name": "a"}, {"name": "b"}])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "lora")
    assert "rank 8 together, and slots are for 4" in refused.json()["error"]["message"]


def test_scales_of_all_adapters_are_set_as_llama_cpp_does(deployment: Deployment) -> None:
    base, whole = deployment.text("base"), deployment.text("a")

    def put(*scales: dict[str, float]) -> httpx.Response:
        return httpx.post(f"{deployment.url}/lora-adapters", json=list(scales))

    answer = put({"id": 0, "scale": 0.5})
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    half = deployment.text("a")
    assert half not in (base, whole)
    assert deployment.text("a", lora=[{"name": "a", "scale": 1.0}]) == whole
    assert deployment.drift() == [("adapter", "a")]
    assert put().json() == {"success": True}  # what is left out has the scale 0
    assert deployment.text("a") == base
    assert httpx.get(f"{deployment.url}/lora-adapters").json()[0]["scale"] == 0.0
    for wrong, param in (({"id": 1, "scale": 1.0}, "[0].id"), ({"id": 0, "scale": 1e9}, "[0].scale")):
        refused = put(wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert deployment.apply().how == "reload"
    assert deployment.text("a") == whole


def test_figures_are_by_adapter_and_go_with_it(deployment: Deployment) -> None:
    deployment.text("a")
    found = httpx.get(f"{deployment.url}/metrics").text
    for line in (
        'appliance_adapter_tokens_total{adapter="a",engine="0",kind="generation",model_name="base"}',
        'appliance_adapter_requests_total{adapter="a",engine="0",model_name="base"}',
        f'appliance_adapter_info{{adapter="a",effective_modules="{NUM_ADAPTED}",',
        'vllm:lora_requests_info{engine="0",max_lora="2",model_name="base"',
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


def test_no_token_changes_in_streams_through_many_changes(deployment: Deployment) -> None:
    """The small form of `python -m tests.e2e.adapted`."""
    churn = Churn()
    asyncio.run(churn.run(deployment, at_once=12, num_changes=20))
    assert churn.num_streams > 12
    assert len(churn.texts) == 4
    assert churn.num_changed == 0
