"""What decides an answer beside sampling: best of several, beam search, filling in, templates and ids of requests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from appliance.engine.scripted import Script
from tests.server.harness import FIRST_BYTE, Server, chat_prompt, encode, running, says
from tests.server.test_completions import PROMPT

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "greet"}]}
COMPLETION = {"model": "scripted", "prompt": PROMPT}


@pytest.fixture
def lenient(server: Server) -> Iterator[openai.OpenAI]:
    """The client's types know no null where OpenAI itself sends one: unfinished completion chunks."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_best_of(client: openai.OpenAI) -> None:
    answer = client.completions.create(**COMPLETION, n=2, best_of=4, logprobs=1)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "hello world"), (1, "hello world")]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16  # all four were generated
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == ["hello", " ", "world", "<|end|>"]
    chat = client.chat.completions.create(**CHAT, extra_body={"best_of": 3})
    assert len(chat.choices) == 1
    assert chat.choices[0].logprobs is None


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)])
def test_beam_search(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    beams = {
        "use_beam_search": True,
        "n": 1,
        "best_of": 2,
        "max_tokens": 20,
        "temperature": 0,
        "early_stopping": "never",
    }
    answer = http.post(path, json={**body, **beams}).json()
    [choice] = answer["choices"]
    assert (choice.get("text") or choice["message"]["content"]) == "hello world"
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 4
    assert http.post(path, json={**body, **beams, "response_format": {"type": "text"}}).status_code == 200
    for name, value in [
        ("stream", True), ("top_p", 0.5), ("stop", "x"), ("bad_words", ["x"]), ("length_penalty", 99.0), ("n", 16),
        ("response_format", {"type": "json_object"}),
    ]:  # fmt: skip
        changed = {**body, **beams, name: value, **({"best_of": 16} if name == "n" else {})}
        refused = http.post(path, json=changed)
        assert refused.status_code == 400, name
        blamed = {"stream": "use_beam_search", "n": "best_of"}.get(name, name)
        assert refused.json()["error"]["param"] == blamed


def test_best_of_is_not_streamed(http: httpx.Client) -> None:
    refused = http.post("/v1/completions", json={**COMPLETION, "best_of": 2, "stream": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "best_of")


def test_token_ids_come_back(client: openai.OpenAI, lenient: openai.OpenAI) -> None:
    wish = {"return_token_ids": True}
    said = [*encode("hello world"), 0]
    whole: Any = client.completions.create(**COMPLETION, extra_body=wish).choices[0]
    assert (whole.prompt_token_ids, whole.token_ids) == (encode(PROMPT), said)
    chat: Any = client.chat.completions.create(**CHAT, extra_body=wish)
    assert (chat.prompt_token_ids, chat.choices[0].token_ids) == (encode(chat_prompt("greet")), said)
    chunks: Any = list(lenient.completions.create(**COMPLETION, stream=True, extra_body=wish))
    assert chunks[0].choices[0].prompt_token_ids == encode(PROMPT)
    assert [token for chunk in chunks for token in chunk.choices[0].token_ids] == said
    chunks = list(client.chat.completions.create(**CHAT, stream=True, extra_body=wish))
    assert chunks[0].prompt_token_ids == encode(chat_prompt("greet"))
    assert [token for chunk in chunks[1:] for token in chunk.choices[0].token_ids] == said


def test_a_model_without_marks_takes_no_suffix(http: httpx.Client) -> None:
    refused = http.post("/v1/completions", json={**COMPLETION, "suffix": "end"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "suffix")
    assert http.post("/v1/completions", json={**COMPLETION, "suffix": ""}).status_code == 200


def test_templates_of_requests_need_the_plans_trust(http: httpx.Client, tmp_path: Path) -> None:
    template = "{% for message in messages %}[{{ message.content }}]{% endfor %}"
    body = {**CHAT, "chat_template": template, "return_token_ids": True, "max_tokens": 1}
    refused = http.post("/v1/chat/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template")
    script = Script(replies=[says("greet", "hello")])
    with running(tmp_path, script, trust_request_chat_template=True) as server, server.http() as trusting:
        answer = trusting.post("/v1/chat/completions", json=body).json()
        assert answer["prompt_token_ids"] == encode("[greet]")
        for bad in (
            "{% for %}",
            "{{ messages.__class__.__mro__ }}",
            "{% for i in range(10**9) %}x{% endfor %}",
            "x" * 10**5,
        ):
            refused = trusting.post("/v1/chat/completions", json={**body, "chat_template": bad})
            assert refused.status_code == 400, bad


def test_logits_processors_are_gated(http: httpx.Client) -> None:
    error = http.post("/v1/completions", json={**COMPLETION, "logits_processors": ["os.system"]}).json()["error"]
    assert error["param"] == "logits_processors"
    assert "logits_processor_pattern" in error["message"]


def test_logits_processors_that_the_pattern_allows(tmp_path: Path) -> None:
    allowed = {"logits_processor_pattern": r"tests\.engine\.processors\.\w+"}
    says_a = {"qualname": "tests.engine.processors.Shift", "args": [FIRST_BYTE + ord("a")], "kwargs": {"by": 1000}}
    with running(tmp_path, Script(replies=[says("greet", "hello world")]), **allowed) as server, server.http() as http:

        def ask(*processors: object, **more: object) -> httpx.Response:
            body = {"model": "scripted", "prompt": "greet", "max_tokens": 3, "logits_processors": list(processors)}
            return http.post("/v1/completions", json=body | more)

        assert ask(says_a).json()["choices"][0]["text"] == "aaa"
        assert [choice["text"] for choice in ask(says_a, n=2).json()["choices"]] == ["aaa", "aaa"]
        late = {**says_a, "kwargs": {"by": 1000, "after": 1}}
        assert ask(late).json()["choices"][0]["text"] == ask().json()["choices"][0]["text"][0] + "aa"
        sampling = {"max_tokens": 3, "logits_processors": [says_a]}
        tokens = http.post("/inference/v1/generate", json={"token_ids": [9, 9], "sampling_params": sampling})
        assert tokens.json()["choices"][0]["token_ids"] == [FIRST_BYTE + ord("a")] * 3
        for wrong, words in (
            ("os.system", "matches whole"),
            ("tests.engine.processors.nothing", "no attribute"),
            ({**says_a, "args": []}, "TypeError"),
            ({"qualname": 3}, "qualname"),
            (3, "logits_processors"),
        ):
            refused = ask(wrong)
            assert refused.status_code == 400, wrong
            assert words in refused.text
        beams = ask(says_a, use_beam_search=True, n=2)
        assert beams.json()["error"]["param"] == "logits_processors"
