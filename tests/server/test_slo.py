"""Declared targets and honest health over HTTP, with the scripted engine's faults."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.engine.scripted import Script
from tests.server.harness import running, says, wait_until


def chat(user: str = "greet", **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": user}], **more}


def counted(http: httpx.Client, name: str, **labels: str) -> float:
    """The sum of a counter's samples that have these labels."""
    families = text_string_to_metric_families(http.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


@pytest.mark.parametrize("servers", [1, 2])
def test_answers_are_counted_by_the_targets_they_met(servers: int, tmp_path: Path) -> None:
    slo = {"ttft_p95": 60.0, "tpot_p50": 60.0, "e2el_p99": 1e-9}
    script = Script(replies=[says("greet", "hello world")])
    with running(tmp_path, script, slo=slo, api_servers=servers) as server, server.http() as http:
        for _ in range(2):
            http.post("/v1/chat/completions", json=chat())
        http.post("/v1/chat/completions", json=chat(max_tokens=1))  # has no time between tokens
        found = {
            (target, met): counted(http, "appliance_slo_requests_total", target=target, met=met)
            for target in slo
            for met in ("yes", "no")
        }
        assert counted(http, "appliance_slo_target_seconds", target="ttft_p95") == 60.0
    assert found == {
        ("ttft_p95", "yes"): 3, ("ttft_p95", "no"): 0, ("tpot_p50", "yes"): 2, ("tpot_p50", "no"): 0,
        ("e2el_p99", "yes"): 0, ("e2el_p99", "no"): 3,
    }  # fmt: skip


def test_a_long_queue_sheds_and_says_when_to_come_back(tmp_path: Path) -> None:
    """One sequence at a time: while the first is answered, the prompts behind it are a queue of a known length."""
    changes = {"max_num_seqs": 1, "server_load_tracking": True, "shed_above_s": 0.05}
    script = Script(step_seconds=0.1)
    with running(tmp_path, script, **changes) as server, server.http() as http, ThreadPoolExecutor(1) as pool:
        with http.stream("POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=400)) as running_one:
            lines = running_one.iter_lines()  # closing it would end the request
            next(lines)
            waiting = pool.submit(http.post, "/v1/chat/completions", json=chat("x" * 60, max_tokens=1))
            wait_until(lambda: http.get("/load").json()["server_load"] == 2, "the second waits")
            refused = http.post("/v1/chat/completions", json=chat())
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "slo_shed"
        assert int(refused.headers["retry-after"]) >= 1
        assert waiting.result().status_code == 200
        assert counted(http, "appliance_requests_shed_total") == 1
        assert http.post("/v1/chat/completions", json=chat(max_tokens=1)).status_code == 200


def deep(http: httpx.Client) -> tuple[int, dict[str, Any]]:
    answer = http.get("/readyz?deep=1")
    return answer.status_code, json.loads(answer.content)


def test_a_deep_check_runs_a_token_and_is_bounded(tmp_path: Path) -> None:
    with running(tmp_path, Script()) as server, server.http() as http:
        for _ in range(20):
            status, body = deep(http)
            assert (status, body["ready"], body["deep"]["result"]) == (200, True, "ok")
        steps = counted(http, "appliance_engine_steps_total")
        assert 1 <= steps == counted(http, "appliance_deep_checks_total", result="ok") < 20
        assert counted(http, "appliance_requests_finished_total") == 0
        assert "deep" not in http.get("/readyz").json()


def test_a_busy_engine_is_never_dead(tmp_path: Path) -> None:
    slow = Script(step_seconds=0.4)
    with running(tmp_path, slow, heartbeat_timeout_s=1.0) as server, server.http() as http:
        with http.stream("POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=400)) as stream:
            lines = stream.iter_lines()  # closing it would end the request
            next(lines)
            status, body = deep(http)  # its token comes with a step of the stream
        assert (status, body["deep"]["result"]) == (200, "ok")
        assert body["deep"]["seconds"] >= 0.4


def test_a_hung_engine_always_is(tmp_path: Path) -> None:
    with running(tmp_path, Script(hang_at_step=1), heartbeat_timeout_s=1.0) as server, server.http() as http:
        assert http.get("/readyz").status_code == 200  # nobody has asked it for anything yet
        status, body = deep(http)
        assert status == 503
        assert any("hangs in step 1" in reason for reason in body["reasons"])
        assert deep(http)[0] == 503
