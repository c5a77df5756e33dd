"""The rules of API keys: models, rates, concurrency, priority, caches; keys from a file; what is counted."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.base.hashing import key_hash
from appliance.engine.messages import SamplingParams
from appliance.engine.scripted import Script
from appliance.plan.key_file import KeyEntry, write_key_file
from appliance.plan.serving_types import KeyPlan
from appliance.requests.errors import ApiError
from appliance.server.http.callers import CALLER, Bucket, Caller, CallerPolicy
from appliance.service.errors import RequestFailedError
from appliance.service.metrics import ServiceMetrics
from appliance.service.requests import TextRequest
from tests.server.harness import Server, running, says, wait_until

GREET = {"messages": [{"role": "user", "content": "greet"}]}
ENDLESS = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 450, "ignore_eos": True}


def keyed(server: Server, key: str) -> httpx.Client:
    return server.http(headers={"authorization": f"Bearer {key}"})


def plan_of(rules: dict[str, dict[str, Any]], **auth: Any) -> dict[str, Any]:
    """Keys named as their secrets."""
    return {"key_hashes": {name: key_hash(name) for name in rules}, "key_rules": rules, **auth}


def test_models_of_a_key(tmp_path: Path) -> None:
    rules: dict[str, dict[str, Any]] = {"some": {"models": ["alias"]}, "none": {"models": []}, "all": {}}
    with running(tmp_path, Script(replies=[says("greet", "hello")]), **plan_of(rules)) as server:
        with keyed(server, "some") as http:
            assert [model["id"] for model in http.get("/v1/models").json()["data"]] == ["alias"]
            assert http.get("/v1/models/scripted").status_code == 403
            assert http.post("/v1/chat/completions", json={**GREET, "model": "alias"}).status_code == 200
            refused = http.post("/v1/chat/completions", json={**GREET, "model": "scripted"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")
            assert refused.json()["error"]["type"] == "permission_error"
            assert http.post("/v1/chat/completions", json={**GREET, "model": "nothing"}).status_code == 404
        with keyed(server, "none") as http:
            assert http.post("/v1/chat/completions", json=GREET).status_code == 403
        with keyed(server, "all") as http:
            assert http.post("/v1/chat/completions", json=GREET).status_code == 200


def test_rates_and_usage_of_a_key(tmp_path: Path) -> None:
    rules = {"few": {"requests_per_minute": 2}, "short": {"tokens_per_minute": 5}, "free": {}}
    with running(tmp_path, Script(replies=[says("greet", "hello")]), **plan_of(rules)) as server:
        with keyed(server, "few") as http:
            codes = [http.post("/v1/chat/completions", json=GREET) for _ in range(3)]
            assert [answer.status_code for answer in codes] == [200, 200, 429]
            assert codes[-1].json()["error"]["code"] == "rate_limit_exceeded"
            assert codes[-1].json()["error"]["type"] == "rate_limit_error"
            assert 1 <= int(codes[-1].headers["retry-after"]) <= 30
            assert http.get("/v1/models").status_code == 200  # looking costs nothing
        with keyed(server, "short") as http:
            first = http.post("/v1/chat/completions", json=GREET)
            assert first.status_code == 200  # what runs may overdraw the minute
            refused = http.post("/v1/chat/completions", json=GREET)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 60
        with keyed(server, "free") as http:
            assert http.post("/v1/chat/completions", json=GREET).status_code == 200
            metrics = http.get("/metrics").text
        used = first.json()["usage"]
        for line in (
            'key_requests_total{key="few",model_name="scripted"} 2.0',
            'key_refusals_total{key="few",model_name="scripted",reason="requests"} 1.0',
            'key_refusals_total{key="short",model_name="scripted",reason="tokens"} 1.0',
            f'key_tokens_total{{key="short",kind="prompt",model_name="scripted"}} {used["prompt_tokens"]}.0',
        ):
            assert f"appliance_{line}" in metrics


def test_concurrency_of_a_key(tmp_path: Path) -> None:
    rules = {"one": {"max_concurrency": 1}, "other": {}}
    with running(tmp_path, Script(step_seconds=0.01), **plan_of(rules)) as server, keyed(server, "one") as http:
        with http.stream("POST", "/v1/chat/completions", json={**ENDLESS, "stream": True}) as stream:
            lines = stream.iter_lines()  # a generator that is dropped would close the stream
            next(lines)
            refused = http.post("/v1/chat/completions", json=GREET)
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            with keyed(server, "other") as other:
                assert other.post("/v1/chat/completions", json={**GREET, "max_tokens": 1}).status_code == 200

        def has_room() -> bool:
            return http.post("/v1/chat/completions", json={**GREET, "max_tokens": 1}).status_code == 200

        wait_until(has_room, "the client went away, and its place is free")


def test_beams_are_one_request_of_a_key(tmp_path: Path) -> None:
    """Their steps are no requests of their own, and the prompt is paid once."""
    rules = {"one": {"max_concurrency": 1, "tokens_per_minute": 1000}}
    with running(tmp_path, Script(), **plan_of(rules)) as server, keyed(server, "one") as http:
        beams = {"prompt": "abcdefgh", "use_beam_search": True, "n": 2, "max_tokens": 5, "temperature": 0}
        for _ in range(2):
            answer = http.post("/v1/completions", json=beams)
            assert answer.status_code == 200, answer.text
        line = 'appliance_key_tokens_total{key="one",kind="prompt",model_name="scripted"} 16.0'
        assert line in http.get("/metrics").text


def test_caches_of_keys_are_apart(tmp_path: Path) -> None:
    """What one key's prompt left is no use to another; its own is."""
    plan = plan_of({"a": {}, "b": {}}, isolate_caches=True)
    prompt = {"prompt": "the same long prompt of many more tokens than a block has", "max_tokens": 2}
    with running(tmp_path, Script(), prompt_tokens_details=True, **plan) as server:

        def cached(key: str, **options: Any) -> int:
            with keyed(server, key) as http:
                usage = http.post("/v1/completions", json={**prompt, **options}).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert cached("a") == 0
        assert cached("a") > 0
        assert cached("b") == 0
        assert cached("b") > 0
        assert cached("b", cache_salt="mine") == 0
        assert cached("a", cache_salt="mine") == 0


def test_keys_of_a_file_come_and_go(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    first = KeyEntry(name="first", hash=key_hash("first"), requests_per_minute=1)
    write_key_file(file, [first])
    with running(tmp_path, Script(step_seconds=0.01), keys_file=str(file)) as server:
        with keyed(server, "second") as http, keyed(server, "first") as old:
            assert http.get("/v1/models").status_code == 401
            with old.stream("POST", "/v1/chat/completions", json={**ENDLESS, "stream": True}) as stream:
                lines = stream.iter_lines()
                next(lines)
                write_key_file(file, [KeyEntry(name="second", hash=key_hash("second"))])
                assert http.get("/v1/models").status_code == 200
                assert old.get("/v1/models").status_code == 401  # revoked at once
                assert [line for line in lines if line][-1] == "data: [DONE]"  # what runs goes on
            write_key_file(file, [first])
            assert http.get("/v1/models").status_code == 401
            file.write_text("{not json")
            assert old.get("/v1/models").status_code == 200  # the keys before hold
        assert "the ones before hold" in server.log.read_text()


def test_a_bad_file_of_keys_ends_the_start(tmp_path: Path) -> None:
    with running(tmp_path, Script(), wait=False, keys_file=str(tmp_path / "nothing.json")) as server:
        server.process.wait(20)
        assert server.process.returncode == 1
        assert "nothing.json" in [event for event in server.events() if event["event"] == "failed"][-1]["reason"]


def test_a_bucket_fills_steadily() -> None:
    now = 0.0
    bucket = Bucket(60, lambda: now)
    assert bucket.wait_s(1.0) == 0
    bucket.take(90)
    assert bucket.wait_s(1.0) == pytest.approx(31.0)
    now = 31.0
    assert bucket.wait_s(1.0) == 0
    now = 1000.0
    bucket.wait_s(1.0)
    bucket.take(60)
    assert bucket.wait_s(1.0) == pytest.approx(1.0)  # a long rest saves up no more than a minute


def test_a_key_is_no_better_than_its_priority() -> None:
    policy = CallerPolicy(isolates_caches=False)
    caller = Caller("low", KeyPlan(priority=5), ServiceMetrics("m"))
    token = CALLER.set(caller)
    try:
        asked = [
            TextRequest(request_id="r", prompt_token_ids=[1], sampling=SamplingParams(), priority=p) for p in (-9, 2)
        ]
        requests, meter = policy.admit(asked)
        assert [request.priority for request in requests] == [5, 7]
        assert caller.account.num_open == 1
        meter.close("stop")
        assert caller.account.num_open == 0
    finally:
        CALLER.reset(token)


def test_a_refusal_reaches_every_api_alike() -> None:
    """The policy stands in the engine client, so its refusal is a RequestFailedError like any other."""
    policy = CallerPolicy(isolates_caches=False)
    token = CALLER.set(Caller("none", KeyPlan(max_concurrency=0), ServiceMetrics("m")))
    try:
        with pytest.raises(RequestFailedError) as refusal:
            policy.admit([TextRequest(request_id="r", prompt_token_ids=[1], sampling=SamplingParams())])
        assert refusal.value.code == "rate_limit_exceeded"
        with pytest.raises(ApiError):
            CALLER.get().open()  # type: ignore[union-attr]  # it was set above
    finally:
        CALLER.reset(token)
    assert json.dumps(refusal.value.retry_after_s) == "1"
