"""Routes that speak token ids, SageMaker's entry, scoring, and the demo."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.engine.scripted import CHOSEN_LOGIT, Script
from tests.server.harness import chat_prompt, encode, running

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "greet"}]}
COMPLETION = {"model": "scripted", "prompt": "Say: "}
SAID = [*encode("hello world"), 0]


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def test_render_and_generate_make_the_same_answer(http: httpx.Client) -> None:
    wish = {"max_completion_tokens": 30, "temperature": 0.0, "stop_token_ids": [5], "logprobs": True}
    rendered = http.post("/v1/chat/completions/render", json={**CHAT, **wish}).json()
    assert rendered["token_ids"] == encode(chat_prompt("greet"))
    params = {"max_tokens": 30, "temperature": 0.0, "stop_token_ids": [5], "logprobs": 0}
    assert rendered["sampling_params"] == params
    answer = http.post("/inference/v1/generate", json=rendered).json()
    [choice] = answer["choices"]
    assert (choice["token_ids"], choice["finish_reason"]) == (SAID, "stop")
    assert len(choice["logprobs"]["content"]) == 4
    assert answer["request_id"] == rendered["request_id"]
    assert answer["usage"]["completion_tokens"] == 4


def test_render_completions(http: httpx.Client) -> None:
    found = http.post("/v1/completions/render", json={"prompt": ["Say: ", "Also: "], "n": 2, "stop": "x"}).json()
    assert [each["token_ids"] for each in found] == [encode("Say: "), encode("Also: ")]
    assert found[0]["sampling_params"] == {"n": 2, "max_tokens": 16, "stop": "x"}
    refused = http.post("/v1/completions/render", json={**COMPLETION, "use_beam_search": True})
    assert refused.json()["error"]["param"] == "use_beam_search"
    assert http.post("/v1/chat/completions/render", json={**CHAT, "model": "no"}).status_code == 404


def test_generate_streams_token_ids(http: httpx.Client) -> None:
    body = {"token_ids": encode("Say: "), "sampling_params": {"max_tokens": 20, "n": 2, "prompt_logprobs": 0}}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    found = events(http.post("/inference/v1/generate", json={**body, **options}).text)
    ids: list[list[int]] = [[], []]
    for event in found[:-1]:
        for choice in event["choices"]:
            ids[choice["index"]] += choice["token_ids"]
    assert ids == [SAID, SAID]
    assert found[-1]["usage"]["completion_tokens"] == 8
    whole = http.post("/inference/v1/generate", json=body).json()
    assert [choice["token_ids"] for choice in whole["choices"]] == ids
    assert len(whole["prompt_logprobs"]) == len(encode("Say: "))


def test_generate_stops_at_text_when_asked(http: httpx.Client) -> None:
    body = {"token_ids": encode("Say: "), "sampling_params": {"max_tokens": 20, "stop": " wor"}}
    [choice] = http.post("/inference/v1/generate", json=body).json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", " wor")


@pytest.mark.parametrize(
    ("param", "change"),
    [
        ("token_ids", {"token_ids": []}), ("token_ids", {"token_ids": [400_000]}), ("token_ids", {"token_ids": [-1]}),
        ("token_ids", {"token_ids": [5] * 600}), ("sampling_params.n", {"sampling_params": {"n": 0}}),
        ("sampling_params.max_tokens", {"sampling_params": {"max_tokens": 10**9}}), ("features", {"features": [1]}),
        ("sampling_params.odd", {"sampling_params": {"odd": 1}}),
        ("kv_transfer_params", {"kv_transfer_params": {"a": 1}}),
    ],
)  # fmt: skip
def test_wrong_generate_requests(http: httpx.Client, param: str, change: dict[str, Any]) -> None:
    refused = http.post("/inference/v1/generate", json={"token_ids": [5], **change})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param


@pytest.mark.parametrize(("body", "kind"), [(CHAT, "chat.completion"), (COMPLETION, "text_completion")])
def test_invocations(http: httpx.Client, body: dict[str, Any], kind: str) -> None:
    whole = http.post("/invocations", json=body).json()
    assert whole["object"] == kind
    streamed = http.post("/invocations", json={**body, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert http.post("/invocations", json={**CHAT, **COMPLETION}).status_code == 400
    assert http.post("/invocations", json={"input": "x"}).status_code == 400


def test_scoring_is_exact(http: httpx.Client) -> None:
    """After "Say: " the script says "hello", with one logit against 0 for the 511 others."""
    hello, other, third = encode("hello")[0], encode("%")[0], encode("?")[0]
    body = {"query": "Say", "items": [": ", "? "], "label_token_ids": [hello, other, third]}
    answer = http.post("/generative_scoring", json=body).json()
    assert (answer["object"], [each["index"] for each in answer["data"]]) == ("list", [0, 1])
    top = math.exp(CHOSEN_LOGIT)
    assert answer["data"][0]["score"] == pytest.approx(top / (top + 2), rel=1e-4)
    assert answer["data"][1]["score"] == pytest.approx(1 / 3, rel=1e-4)
    assert answer["usage"] == {"prompt_tokens": 10, "total_tokens": 10, "completion_tokens": 0}
    raw = http.post("/generative_scoring", json={**body, "apply_softmax": False}).json()
    assert raw["data"][0]["score"] == pytest.approx(top / (top + 511), rel=1e-4)
    ids = {**body, "query": encode(": "), "items": ["Say"], "item_first": True}
    assert http.post("/generative_scoring", json=ids).json()["data"][0]["score"] == answer["data"][0]["score"]


@pytest.mark.parametrize(
    ("param", "change"),
    [
        ("label_token_ids", {"label_token_ids": []}), ("label_token_ids", {"label_token_ids": [5, 5]}),
        ("label_token_ids", {"label_token_ids": [400_000]}), ("items", {"items": []}),
        ("items", {"items": ["x" * 600]}),
        ("items", {"items": ["x"] * 5000}), ("items", {"query": "", "items": [""]}), ("odd", {"odd": 1}),
    ],
)  # fmt: skip
def test_wrong_scoring_requests(http: httpx.Client, param: str, change: dict[str, Any]) -> None:
    refused = http.post("/generative_scoring", json={"query": "x", "items": ["y"], "label_token_ids": [5], **change})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param


def test_demo(http: httpx.Client) -> None:
    body = {"prompt": "Say: ", "n": 2, "max_tokens": 20, "temperature": 0}
    assert http.post("/generate", json=body).json() == {"text": ["Say: hello world"] * 2}
    searched = {**body, "n": 1, "use_beam_search": True}
    assert http.post("/generate", json=searched).json() == {"text": ["Say: hello world"]}
    of_llama_index = {**body, "n": 1, "best_of": None, "logprobs": None, "top_k": -1}  # its VllmServer sends nulls
    assert http.post("/generate", json=of_llama_index).json() == {"text": ["Say: hello world"]}
    assert http.post("/generate", json={**of_llama_index, "logprobs": 1}).json()["error"]["param"] == "logprobs"
    pieces = http.post("/generate", json={**body, "n": 1, "stream": True}).content.split(b"\0")
    texts = [json.loads(piece)["text"][0] for piece in pieces[:-1]]
    assert pieces[-1] == b""
    assert texts[-1] == "Say: hello world"
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


def test_tokenizer_info_is_shown_where_the_plan_says(http: httpx.Client, tmp_path: Path) -> None:
    assert http.get("/tokenizer_info").status_code == 404
    with running(tmp_path, Script(), tokenizer_info=True) as server, server.http() as showing:
        told = showing.get("/tokenizer_info").json()
        assert told["tokenizer_class"] == "BPE"
        assert told["added_tokens_decoder"]["0"] == {"content": "<|end|>", "special": True}
        assert "messages" in told["chat_template"]


def test_opt_in_routes_are_off_by_default(tmp_path: Path) -> None:
    with running(tmp_path, Script(), apis=["openai"]) as server, server.http() as plain:
        for path in (
            "/generate",
            "/inference/v1/generate",
            "/invocations",
            "/v1/responses",
            "/v1/messages",
            "/v1/files",
        ):
            assert plain.post(path, json={}).status_code == 404
