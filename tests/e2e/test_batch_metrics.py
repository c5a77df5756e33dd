"""The metrics of a batch, over HTTP while it runs."""

import json
import subprocess
from pathlib import Path

import httpx

from tests.e2e.conftest import CommandLine, free_port
from tests.e2e.served import make_random_model
from tests.server.harness import wait_until

NUM_LINES = 120
SPEC = """\
api_version: appliance/v1
kind: Deployment
name: metered
model: {source: ./model, served_names: [tiny], max_model_len: 512}
hardware: {memory: {kv_cache: 4MiB}}
batch: {max_concurrency: 1, metrics: {enabled: true, port: %d}}
"""


def request(number: int) -> str:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 32, "ignore_eos": True}
    return json.dumps({"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body})


def is_begun(path: Path) -> bool:
    return path.exists() and b"\n" in path.read_bytes()


def metrics_of(url: str) -> str | None:
    """What a listener says of finished requests; None while nothing listens."""
    try:
        answer = httpx.get(url)
    except httpx.TransportError:
        return None
    return answer.text if answer.status_code == 200 else None


def test_a_batch_may_serve_its_metrics(appliance: CommandLine, tmp_path: Path) -> None:
    source, target, port = tmp_path / "in.jsonl", tmp_path / "out.jsonl", free_port()
    (tmp_path / "model").mkdir()
    make_random_model(tmp_path / "model")
    (tmp_path / "spec.yaml").write_text(SPEC % port)
    source.write_text("\n".join(request(number) for number in range(NUM_LINES)) + "\n")
    command = appliance.command("batch", tmp_path / "spec.yaml", "-i", source, "-o", target)
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, env=appliance.environment, stderr=subprocess.DEVNULL) as batch:
        wait_until(lambda: is_begun(target) or batch.poll() is not None, "nothing was written", timeout_s=60.0)
        found = metrics_of(f"{url}/metrics")
        others = [httpx.get(f"{url}{path}").status_code for path in ("/v1/models", "/health", "/")]
        posted = httpx.post(f"{url}/v1/completions", json={"model": "tiny", "prompt": "x"}).status_code
        assert batch.wait(60) == 0
    assert found is not None
    assert "generation_tokens_total" in found
    assert (others, posted) == ([404, 404, 404], 404)
    assert metrics_of(f"{url}/metrics") is None
