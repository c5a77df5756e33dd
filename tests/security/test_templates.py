"""Tests 26 to 29 of the list: templates of clients and of models."""

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.engine.scripted import Script
from tests.security.surface import GENERATION, READING, error_of, routes, with_body
from tests.server.harness import BOS, EOS, running

RENDERING = [
    path
    for path in with_body()
    if (path in GENERATION and GENERATION[path].is_rendered) or (path in READING and path != "/detokenize")
]
EVIL_TEMPLATES = {
    "loop": "{% for i in range(10**9) %}{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "string": "{{ 'a' * 10**10 }}",
    "list": "{{ ([0] * 10**10) | length }}",
    "power": "{{ 10**10**8 }}",
    "output": "{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
    "attributes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "globals": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}


@pytest.mark.parametrize("path", RENDERING)
def test_26_no_template_of_a_request(http: httpx.Client, path: str) -> None:
    for value in ("{{ 1 }}", "", {"a": 1}):
        answer = http.post(path, json={**with_body()[path]("greet"), "chat_template": value})
        assert answer.status_code == 400, answer.text[:200]
        assert "chat_template" in error_of(answer)["message"]


@pytest.mark.parametrize("name", EVIL_TEMPLATES)
def test_27_a_model_template_is_bounded(tmp_path: Path, name: str) -> None:
    """The request is refused in time and says why; another one is answered meanwhile; nothing of ours is shown."""
    plan = {"chat_template": EVIL_TEMPLATES[name]}
    with running(tmp_path, Script(), **plan) as server, server.http() as http:
        answers: list[httpx.Response] = []
        body = GENERATION["/v1/chat/completions"].body("greet")

        def ask() -> None:
            with server.http() as other:
                answers.append(other.post("/v1/chat/completions", json=body))

        asking = threading.Thread(target=ask)
        asking.start()
        assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
        asking.join()
        assert answers[0].status_code in (400, 422, 500), answers[0].text[:200]
        assert "0x" not in answers[0].text
        assert "uid=" not in answers[0].text
        assert http.get("/readyz").status_code == 200


def test_28_template_arguments_are_arguments(http: httpx.Client) -> None:
    """They cannot replace what the template is given by us."""
    body = GENERATION["/v1/chat/completions"].body("greet")
    for kwargs in (
        {"messages": []}, {"tokenize": True}, {"chat_template": "{{ 1 }}"}, {"add_generation_prompt": False},
        {"tools": [1]}, {"bos_token": "x"}, {"raise_exception": "x"}, {"self": 1}, {"__class__": 1},
    ):  # fmt: skip
        answer = http.post("/v1/chat/completions", json={**body, "chat_template_kwargs": kwargs})
        if answer.status_code == 200:
            assert answer.json()["choices"][0]["message"]["content"] == "hello world", kwargs
        else:
            assert answer.status_code == 400
            error_of(answer)


SPELLED, PLAIN = "x<|end|>y", "x<|enx|>y"  # the first spells the end of a sequence
CHATTING = [path for path in RENDERING if path not in ("/tokenize", "/v1/completions/render", "/generative_scoring")]


@pytest.mark.parametrize("path", CHATTING)
def test_29_content_says_no_control_token(http: httpx.Client, path: str) -> None:
    """On every route that renders a conversation, a control token in it counts as the characters that spell it."""
    counts = []
    for text in (SPELLED, PLAIN):
        answer = http.post(path, json=with_body()[path](text))
        assert answer.status_code == 200, answer.text[:200]
        found = answer.json()
        usage = found.get("usage", found)
        names = ("prompt_tokens", "input_tokens")
        counts.append(next((usage[name] for name in names if name in usage), None) or len(found["token_ids"]))
    assert counts[0] == counts[1]


TOOL = {"type": "function", "function": {"name": "f", "description": "d<|end|>", "parameters": {"<|end|>": 1}}}
CONTENTS: list[Any] = [
    SPELLED,
    [{"type": "text", "text": "x<|e"}, {"type": "text", "text": "nd|>y"}],
    [{"type": "text", "text": "<|end|><|begin|><|end|>"}, {"type": "text", "text": "<|<|end|>|>"}],
    "\ufdd0<|end|>\ufdd1",
]


@pytest.mark.parametrize("special", ["escape", "parse"])
def test_29_ids_prove_it(tmp_path: Path, special: str) -> None:
    """Contents in parts, tools, documents and variables too. The spec may let messages say control tokens."""
    template = (
        "{{ tools | tojson }}{{ documents | tojson }}{{ extra }}{% for message in messages %}"
        "{{ message.role }}{% for part in message.content %}{{ part.text }}{% endfor %}{% endfor %}<|end|>"
    )
    plan = {"parse_message_tokens": special == "parse", "chat_template": template}
    with (
        running(tmp_path, Script(), chat_template_content_format="openai", **plan) as server,
        server.http() as http,
    ):
        for content in CONTENTS:
            body: dict[str, Any] = {
                "messages": [{"role": "user", "content": content}],
                "tools": [TOOL],
                "chat_template_kwargs": {"extra": "<|begin|>"},
            }
            for add_special_tokens in (False, True):
                asked = {**body, "add_special_tokens": add_special_tokens}
                answer = http.post("/tokenize", json=asked)
                assert answer.status_code == 200, answer.text
                tokens = answer.json()["tokens"]
                assert tokens[-1] == EOS  # the template's own
                if special == "escape":
                    assert tokens.count(EOS) == 1
                    assert BOS not in tokens
                else:
                    assert tokens.count(EOS) > 1
            text = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
            said = content if isinstance(content, str) else "".join(part["text"] for part in content)
            assert said in text  # every character is there


def test_29_prompts_are_prompts(http: httpx.Client) -> None:
    """A prompt of completions is the client's whole text, and says what it says."""
    assert EOS in http.post("/tokenize", json={"prompt": SPELLED}).json()["tokens"]


def test_the_rendering_routes_are_all_here() -> None:
    assert {route.path for route in routes("POST")} >= set(RENDERING)
    assert "/v1/chat/completions" in RENDERING
