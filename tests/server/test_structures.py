"""Bodies with too much of everything, and with what JSON should not hold: each ends alone, with an answer."""

import json
from typing import Any

import httpx
import pytest

from tests.server.test_bad_requests import BODIES, POSTS, is_error

TOOL = {"type": "function", "function": {"name": "f"}}
CHAT = "/v1/chat/completions"
MANY: list[tuple[str, str, dict[str, Any]]] = [
    (CHAT, "messages", {"messages": [{"role": "user", "content": "x"}] * 20_000}),
    (CHAT, "tools", {"tools": [TOOL] * 20_000}),
    (CHAT, "stop", {"stop": [f"s{number}" for number in range(20_000)]}),
    (CHAT, "bad_words", {"bad_words": ["x"] * 20_000}),
    (CHAT, "stop_token_ids", {"stop_token_ids": [5] * 20_000}),
    ("/v1/completions", "prompt", {"prompt": ["x"] * 20_000}),
    ("/v1/messages", "stop", {"stop_sequences": [f"s{number}" for number in range(20_000)]}),
    ("/v1/responses", "messages", {"input": [{"role": "user", "content": "x"}] * 20_000}),
    ("/generative_scoring", "label_token_ids", {"label_token_ids": list(range(20_000))}),
]


@pytest.mark.parametrize(("path", "field", "change"), MANY, ids=lambda value: value if isinstance(value, str) else "")
def test_too_many_are_refused_with_their_number(http: httpx.Client, path: str, field: str, change: Any) -> None:
    error = is_error(http.post(path, json={**BODIES[path], **change}))
    assert field in error["message"]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("inner", ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000])
def test_deep_values_of_any_field(http: httpx.Client, path: str, inner: str) -> None:
    body = json.dumps({**BODIES[path], "metadata": "inner"}).replace('"inner"', inner)
    is_error(http.post(path, content=body, headers={"content-type": "application/json"}))
    assert http.get("/readyz").status_code == 200


@pytest.mark.parametrize("path", POSTS)
def test_the_last_of_two_fields_of_one_name_counts(http: httpx.Client, path: str) -> None:
    body = json.dumps(BODIES[path])
    twice = f'{{"no_such": 1, {body[1:-1]}, {body[1:]}'
    is_error(http.post(path, content=twice, headers={"content-type": "application/json"}))
    plain = http.post(path, content=body, headers={"content-type": "application/json"}).status_code
    twice = f"{{{body[1:-1]}, {body[1:]}"
    assert http.post(path, content=twice, headers={"content-type": "application/json"}).status_code == plain
