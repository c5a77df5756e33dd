"""What `status --usage` reads of a server's metrics, and that it is what was asked of it."""

from pathlib import Path

import pytest

from appliance.base.hashing import key_hash
from appliance.deploy.probe import ask_metrics
from appliance.deploy.usage import read_usage, usage_text
from appliance.engine.scripted import Script
from tests.server.harness import running


def test_a_server_tells_what_was_asked_of_it(tmp_path: Path) -> None:
    with running(tmp_path, Script()) as server, server.http() as client:
        for number in range(3):
            body = {"model": "scripted", "prompt": "abcdef", "max_tokens": 2 + number}
            assert client.post("/v1/completions", json=body).status_code == 200
        assert client.post("/v1/completions", json={"model": "scripted"}).status_code == 400
        metrics = ask_metrics(server.url)
    assert metrics is not None
    found = read_usage(metrics)
    assert sum(found["requests"].values()) == 3
    assert found["prompt_tokens"] > 0
    assert found["generation_tokens"] >= 3
    assert found["keys"] == found["adapters"] == {}
    assert usage_text(found)[0][0] == "requests"


def test_keys_adapters_and_replicas_are_told_apart_and_added_up() -> None:
    text = """\
# TYPE appliance_generation_tokens counter
appliance_generation_tokens_total{engine="0"} 1000.0
appliance_generation_tokens_total{engine="1"} 500.0
# TYPE appliance_requests_finished counter
appliance_requests_finished_total{engine="0",finished_reason="stop"} 3.0
appliance_requests_finished_total{engine="0",finished_reason="length"} 0.0
# TYPE appliance_key_tokens counter
appliance_key_tokens_total{key="team-a",kind="prompt"} 7.0
appliance_key_tokens_total{key="team-a",kind="generation"} 9.0
# TYPE appliance_key_requests counter
appliance_key_requests_total{key="team-a"} 2.0
# TYPE appliance_adapter_requests counter
appliance_adapter_requests_total{engine="0",adapter="sql"} 1.0
"""
    found = read_usage(text)
    assert found == {
        "generation_tokens": 1500,
        "requests": {"stop": 3, "length": 0},
        "keys": {"team-a": {"tokens": {"prompt": 7, "generation": 9}, "requests": 2}},
        "adapters": {"sql": {"requests": 1}},
    }
    assert usage_text(found) == [
        ("requests", "stop 3"),
        ("tokens", "0 of prompts (0 cached), 1,500 of answers"),
        ("key team-a", "2 requests; tokens prompt 7, generation 9"),
        ("adapter sql", "1 requests"),
    ]


def test_a_server_without_metrics_says_so() -> None:
    assert usage_text(None) == [
        ("usage", "the server shows no metrics: observability.metrics.enabled, or APPLIANCE_API_KEY where it has keys")
    ]


def test_a_server_with_keys_is_asked_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, Script(), key_hashes={"team-a": key_hash("secret")}) as server:
        assert ask_metrics(server.url) is None
        monkeypatch.setenv("APPLIANCE_API_KEY", "secret")
        with server.http(headers={"authorization": "Bearer secret"}) as client:
            body = {"model": "scripted", "prompt": "abcdef", "max_tokens": 2}
            assert client.post("/v1/completions", json=body).status_code == 200
        metrics = ask_metrics(server.url)
    assert metrics is not None
    assert read_usage(metrics)["keys"]["team-a"]["requests"] == 1
