"""Tests 26 to 29 of the list: templates of clients and of models."""

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.engine.scripted import Script
from tests.security.surface import GENERATION, READING, error_of, routes, with_body
from tests.server.harness import EOS, TEMPLATE, byte_tokenizer, running, says

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


def test_29_content_with_control_tokens(tmp_path: Path) -> None:
    """What a message says is known to tokenize as a special token only where the model's own tokenizer does so.

    The spec has no switch to escape them yet; this holds what is true: generation is not ended by a prompt that
    names the end of sequence, and the ids tell.
    """
    with running(tmp_path, Script(replies=[says("x<|end|>y", "fine")])) as server, server.http() as http:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "x<|end|>y"}]}
        tokens = http.post("/tokenize", json=body).json()["tokens"]
        expected = byte_tokenizer().encode(TEMPLATE_OF("x<|end|>y"), add_special_tokens=False).ids
        assert tokens == expected
        assert EOS in tokens
        answer = http.post("/v1/chat/completions", json={**body, "max_tokens": 5})
        assert answer.json()["choices"][0]["message"]["content"] == "fine"


def TEMPLATE_OF(content: str) -> str:  # noqa: N802 - reads as the constant it fills in
    assert "<{{ message['role'] }}>" in TEMPLATE
    return f"<user>{content}</><assistant>"


def test_the_rendering_routes_are_all_here() -> None:
    assert {route.path for route in routes("POST")} >= set(RENDERING)
    assert "/v1/chat/completions" in RENDERING
