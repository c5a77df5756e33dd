"""The Serve application that `appliance render --to ray-serve` writes, on a cluster of one machine."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from appliance.deploy.render.targets import render_target
from appliance.deploy.render.workload import RenderOptions
from appliance.plan.prepare import prepare
from tests.e2e.conftest import free_port
from tests.models.trained import FIELD
from tests.ray.conftest import HOST, SPEC

pytestmark = pytest.mark.filterwarnings("ignore")  # those of Ray are not ours
PATIENCE_S = 90.0
COUNTED = "appliance_prompt_tokens_total{"
QUICK = {"upscale_delay_s": 0.5, "downscale_delay_s": 5.0, "look_back_period_s": 2.0}


@pytest.fixture(scope="module")
def url(cluster: Any, echo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Deploys what the verb writes, with an autoscaler that decides within seconds."""
    from ray import serve
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    spec = tmp_path_factory.mktemp("serve") / "echo.yaml"
    spec.write_text(SPEC.format(model=echo_model, port=free_port()))
    files = render_target("ray-serve", prepare(spec), (), RenderOptions(max_replicas=2))
    config = yaml.safe_load(files["serve.yaml"])
    engine = config["applications"][0]["deployments"][1]
    engine["autoscaling_config"] |= QUICK
    serve.start(http_options=serve.config.HTTPOptions(**config["http_options"]))
    client = _get_global_client()
    assert client is not None
    client.deploy_apps(ServeDeploySchema.model_validate(config))
    wait(lambda: serve.status().applications["echo"].status == "RUNNING")
    yield f"http://{HOST}:{config['http_options']['port']}"
    serve.shutdown()


def wait(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.1)


def num_engines() -> int:
    from ray import serve

    return int(serve.status().applications["echo"].deployments["engine"].replica_states.get("RUNNING", 0))


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "echo", "messages": [{"role": "user", "content": text}], "temperature": 0, **more}


def test_an_answer_is_that_of_the_server(url: str) -> None:
    answer = httpx.post(f"{url}/v1/chat/completions", json=chat("hello ray"), timeout=PATIENCE_S)
    assert answer.json()["choices"][0]["message"]["content"] == "hello ray"
    refused = httpx.post(f"{url}/v1/chat/completions", json={"model": "other", "messages": []}, timeout=PATIENCE_S)
    assert refused.status_code == 404
    assert "served here: echo" in refused.json()["error"]["message"]
    assert httpx.get(f"{url}/readyz", timeout=PATIENCE_S).json()["ready"] is True


def test_a_stream_comes_in_events(url: str) -> None:
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=chat("abc", stream=True), timeout=PATIENCE_S) as found:
        assert found.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in found.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert len(lines) > 2


def test_a_body_that_is_too_large_is_refused(url: str) -> None:
    refused = httpx.post(f"{url}/v1/chat/completions", content=b"x" * (9 << 20), timeout=PATIENCE_S)
    assert refused.status_code == 413


async def test_engines_come_and_go_under_load_and_no_request_fails(url: str) -> None:
    asked, is_over = 0, asyncio.Event()

    async def keep_asking(client: httpx.AsyncClient, number: int) -> None:
        nonlocal asked
        while not is_over.is_set():
            text = f"{number} {asked}"[:FIELD]
            answer = await client.post(f"{url}/v1/chat/completions", json=chat(text))
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["content"] == text
            asked += 1

    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        assert num_engines() == 1
        crowd = [asyncio.create_task(keep_asking(client, number)) for number in range(12)]
        await asyncio.to_thread(wait, lambda: num_engines() == 2 or any(each.done() for each in crowd))
        is_over.set()
        await asyncio.gather(*crowd)
        is_over.clear()
        alone = asyncio.create_task(keep_asking(client, 99))
        await asyncio.to_thread(check_prefixes, url)  # before the autoscaler has made up its mind
        await asyncio.to_thread(wait, lambda: num_engines() == 1 or alone.done())
        is_over.set()
        await alone
    assert asked > 100


def check_prefixes(url: str) -> None:
    """Each of several long prompts goes to the engine that has its keys and values, while both engines run."""
    hits = []
    for _ in range(4):
        for number in range(8):
            body = {"model": "echo", "prompt": f"{number}" * 200, "max_tokens": 1}
            usage = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE_S).json()["usage"]
            hits.append(usage["prompt_tokens_details"]["cached_tokens"] > 0)
    assert hits.count(False) == 8
    metrics = httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text
    (name, *_), counts = zip(*(line.split() for line in metrics.splitlines() if line.startswith(COUNTED)), strict=True)
    assert "replica=" in name
    assert len(counts) == 2
    assert all(float(each) > 0 for each in counts)
