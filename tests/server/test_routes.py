"""Models, tokens, health, keys, CORS and metrics."""

import json
import math
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.base.hashing import key_hash
from appliance.engine.scripted import Script
from appliance.server.http.routes import ROUTES
from tests.server.harness import Server, chat_prompt, encode, example_path, running, says

METRICS_SCHEMA = Path(__file__).parents[2] / "schemas" / "metrics.v1.json"
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "greet"}]}


def test_models(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == ["scripted", "alias"]
    assert client.models.retrieve("alias").root == "scripted"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no/such")


@pytest.mark.parametrize("path", [
    "/v1/audio/transcriptions", "/sleep", "/server_info",
    "/reset_prefix_cache", "/v1/load_lora_adapter", "/get_tokenizer_info", "/v1/conversations",
])  # fmt: skip
def test_paths_of_other_servers_say_why_they_are_not_here(http: httpx.Client, path: str) -> None:
    error = http.post(path, json={}).json()["error"]
    assert (error["code"], http.post(path, json={}).status_code) == ("not_served", 404)
    assert "; " in error["message"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/score", "/v2/rerank", "/classify", "/v2/embed"])
def test_routes_of_models_that_pool_say_what_this_one_does(http: httpx.Client, path: str) -> None:
    refused = http.post(path, json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_task")
    assert "is served to generate" in refused.json()["error"]["message"]


def test_a_route_that_is_switched_off_says_so(tmp_path: Path) -> None:
    with running(tmp_path, Script(), apis=["openai"]) as server, server.http() as http:
        for path in ("/v1/messages", "/v1/responses", "/inference/v1/generate"):
            assert "endpoints.apis" in http.post(path, json={}).json()["error"]["message"]
        unknown = http.post("/v1/nothing", json={}).json()["error"]
        assert unknown["code"] == "unknown_path"


def test_a_method_that_is_switched_off_says_so(http: httpx.Client) -> None:
    refused = http.post("/lora-adapters", json=[])
    assert refused.status_code == 405
    assert "it is switched off here (lora.allow_runtime_updating)" in refused.json()["error"]["message"]


def test_tokenize_a_prompt(http: httpx.Client) -> None:
    answer = http.post("/tokenize", json={"prompt": "hello world", "return_token_strs": True}).json()
    assert answer["tokens"] == encode("hello world")
    assert answer["token_strs"] == ["hello", " ", "world"]
    assert answer["count"] == 3
    assert answer["max_model_len"] == 512
    assert http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": "hello world"}


def test_tokenize_messages(http: httpx.Client) -> None:
    answer = http.post("/tokenize", json={"messages": CHAT["messages"]}).json()
    assert answer["tokens"] == encode(chat_prompt("greet"))
    both = http.post("/tokenize", json={"messages": CHAT["messages"], "prompt": "x"})
    assert both.status_code == 400


def test_health_routes(http: httpx.Client) -> None:
    assert http.get("/livez").json() == {"live": True}
    ready = http.get("/readyz")
    assert ready.status_code == 200
    assert ready.json()["reasons"] == []
    assert http.get("/health").status_code == 200
    assert http.get("/ping").status_code == http.post("/ping").status_code == 200
    assert http.get("/version").json()["version"]
    assert http.get("/load").json() == {"server_load": 0}


def test_metrics_have_both_names(http: httpx.Client) -> None:
    http.post("/v1/chat/completions", json=CHAT)
    text = http.get("/metrics").text
    for name in ("appliance_time_to_first_token_seconds_bucket", "vllm:time_to_first_token_seconds_bucket",
                 "appliance_requests_finished_total", "vllm:request_success_total", "vllm:num_requests_running",
                 "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:kv_cache_usage_perc"):  # fmt: skip
        assert f"\n{name}{{" in text, name


def test_a_scrape_has_what_the_schema_lists_and_nothing_else(http: httpx.Client) -> None:
    http.post("/v1/chat/completions", json=CHAT)
    scraped = {
        family.name: family
        for family in text_string_to_metric_families(http.get("/metrics").text)
        if not family.name.endswith("_created")
    }
    listed: dict[str, dict[str, Any]] = {}
    for metric in json.loads(METRICS_SCHEMA.read_text())["metrics"]:
        for name in (metric["name"], metric["alias"], *metric.get("other_aliases", ())):
            if name is not None:
                listed[name.removesuffix("_total") if metric["kind"] == "counter" else name] = metric
    assert set(scraped) == set(listed)
    for name, metric in listed.items():
        assert scraped[name].type == metric["kind"], name
        for sample in scraped[name].samples:
            assert set(sample.labels) - {"le"} == {"model_name", *metric["labels"]}, sample
        bounds = {sample.labels["le"] for sample in scraped[name].samples if "le" in sample.labels}
        assert {float(bound) for bound in bounds} - {math.inf} == set(metric["buckets"]), name


def test_the_phases_of_a_request_add_up(tmp_path: Path) -> None:
    with running(tmp_path, Script(replies=[says("greet", "hello world")])) as server, server.http() as http:
        http.post("/v1/chat/completions", json={**CHAT, "n": 2})
        found = {
            sample.name: sample.value
            for family in text_string_to_metric_families(http.get("/metrics").text)
            for sample in family.samples
        }
    phases = {name: found[f"vllm:request_{name}_time_seconds_sum"] for name in ("prefill", "decode", "inference")}
    assert phases["inference"] == pytest.approx(phases["prefill"] + phases["decode"])
    assert found["vllm:request_queue_time_seconds_count"] == found["vllm:request_inference_time_seconds_count"] == 1
    assert found["vllm:request_max_num_generation_tokens_sum"] == len(encode("hello world")) + 1
    tokens = found["vllm:prompt_tokens_total"] + found["vllm:generation_tokens_total"]
    assert 0 < found["vllm:iteration_tokens_total_sum"] <= tokens
    assert found["vllm:iteration_tokens_total_count"] == found["appliance_engine_steps_total"]
    assert found["vllm:cache_config_info"] == 1


def test_unknown_models_make_no_metric_series(http: httpx.Client) -> None:
    for name in ("evil-1", "evil-2"):
        http.post("/v1/chat/completions", json={**CHAT, "model": name})
        http.get(f"/{name}")
        http.get(f"/v1/models/{name}")
    assert "evil" not in http.get("/metrics").text


def test_metrics_schema_is_current() -> None:
    from appliance.service.metrics import schema

    assert json.loads(METRICS_SCHEMA.read_text()) == schema(), "run: appliance schema --write"


def test_docs_are_off(http: httpx.Client) -> None:
    assert {http.get(path).status_code for path in ("/docs", "/docs.js", "/redoc", "/openapi.json")} == {404}


def test_keys_guard_every_route_but_health(tmp_path: Path) -> None:
    hashes = {"a": key_hash("first-key"), "b": key_hash("second-key")}
    plan = {"key_hashes": hashes, "request_id_headers": True, "origins": ["https://app.example"], "metrics": True}
    with running(tmp_path, Script(replies=[says("greet", "hello")]), **plan) as server, server.http() as http:
        for route in ROUTES:
            path = example_path(route)
            for method in (*route.methods, "HEAD", "OPTIONS", "PUT"):
                status = http.request(method, path).status_code
                assert (status == 401) == (route.auth == "key"), (method, path, status)
        odd = [
            "/V1/models",
            "//v1/models",
            "/v1/models/",
            "/livez/",
            "/livez/../v1/models",
            "/%2e/v1/models",
            "/nothing",
            "/docs/",
        ]
        assert {http.get(path).status_code for path in odd} == {401}
        evil = {
            "host": "evil",
            "x-forwarded-prefix": "/livez",
            "x-original-url": "/livez",
            "x-rewrite-url": "/livez",
        }
        assert http.get("/v1/models", headers=evil).status_code == 401
        error = http.get("/v1/models").json()["error"]
        assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")
        for key in ("first-key", "second-key"):
            assert http.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200
            assert http.get("/v1/models", headers={"x-api-key": key}).status_code == 200
        for wrong in ("Bearer", "Bearer first-ke", "Basic first-key", "first-key", "Bearer first-key x"):
            assert http.get("/v1/models", headers={"authorization": wrong}).status_code == 401
        with server.openai("second-key") as client:
            assert client.chat.completions.create(**CHAT).choices[0].message.content == "hello"
        _check_headers(http)
        log = server.log.read_text()
        metrics = http.get("/metrics", headers={"x-api-key": "first-key"}).text
        assert "first-key" not in log + metrics


def _check_headers(http: httpx.Client) -> None:
    """Request ids come back; CORS is answered for the planned origin alone."""
    headers = {"x-api-key": "first-key", "x-request-id": "abc"}
    answer = http.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert answer.headers["x-request-id"] == "abc"
    assert answer.json()["id"] == "chatcmpl-abc"
    asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
    assert http.options("/v1/models", headers=asked).headers["access-control-allow-origin"] == "https://app.example"
    refused = http.options("/v1/models", headers={**asked, "origin": "https://evil.example"})
    assert "access-control-allow-origin" not in refused.headers


def test_options_of_the_plan(tmp_path: Path) -> None:
    plan = {
        "root_path": "/llm", "docs": True, "force_include_usage": True, "prompt_tokens_details": True,
        "return_tokens_as_token_ids": True, "metrics": False, "chat_template": None,
        "default_sampling": {"temperature": 0.2, "max_tokens": 3},
    }  # fmt: skip
    with running(tmp_path, Script(), **plan) as server, server.http() as http:
        assert http.get("/openapi.json").status_code == 200
        assert http.get("/metrics").status_code == 404
        assert http.get("/load").json()["error"]["code"] == "not_enabled"
        chat = http.post("/v1/chat/completions", json=CHAT)
        assert (chat.status_code, chat.json()["error"]["code"]) == (400, "no_chat_template")
        answer = http.post("/v1/completions", json={"prompt": "x", "max_tokens": 10, "logprobs": 0}).json()
        assert answer["usage"]["completion_tokens"] == 3  # the model's own limit
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        assert answer["choices"][0]["logprobs"]["tokens"][0].startswith("token_id:")
        lines = http.post("/v1/completions", json={"prompt": "x", "stream": True}).text.split("\n\n")
        assert lines[-2] == "data: [DONE]"
        assert json.loads(lines[-3].removeprefix("data: "))["usage"]["completion_tokens"] == 3


def test_response_role_of_the_plan(tmp_path: Path) -> None:
    with (
        running(tmp_path, Script(replies=[says("greet", "hello")]), response_role="bot") as server,
        server.http() as http,
    ):
        assert http.post("/v1/chat/completions", json=CHAT).json()["choices"][0]["message"]["role"] == "bot"
        streamed = http.post("/v1/chat/completions", json={**CHAT, "stream": True}).text
        assert '"delta":{"role":"bot","content":""}' in streamed


def test_priority_needs_its_policy(tmp_path: Path) -> None:
    with running(tmp_path, Script(), order="priority") as server, server.http() as http:
        assert http.post("/v1/completions", json={"prompt": "x", "priority": -5}).status_code == 200


def test_events_are_framed(server: Server) -> None:
    with server.http() as http, http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = "".join(answer.iter_text())
    events = text.split("\n\n")
    assert events[-1] == ""
    assert events[-2] == "data: [DONE]"
    assert len(events) > 3
    assert all(event.startswith("data: {") and "\n" not in event for event in events[:-2])
