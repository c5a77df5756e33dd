"""Tests 20 to 25 of the list: absurd, huge and malformed requests are refused; other clients are not affected."""

import gzip
import json
from typing import Any

import httpx
import pytest

from tests.security.surface import GENERATION, bytes_of, error_of, generation, with_body
from tests.server.harness import Server
from tests.server.wire import exchange, statuses

MIB = 1 << 20
ALLOWED_GROWTH = 50 * MIB
MILLION = 1_000_000

ABSURD: dict[str, Any] = {
    "n": 10**9, "best_of": 10**9, "max_tokens": -1, "min_tokens": 10**12, "top_k": -7, "top_p": 3.0, "min_p": -1.0,
    "temperature": -1.0, "presence_penalty": 1e300, "repetition_penalty": 0.0, "seed": 2**80, "logprobs": 10**6,
    "prompt_logprobs": 10**6, "stop": ["s"] * MILLION, "bad_words": ["w"] * MILLION, "stop_token_ids": [-1],
    "logit_bias": {str(token): 1.0 for token in range(MILLION // 4)}, "allowed_token_ids": [10**9],
    "truncate_prompt_tokens": -5, "priority": 2**70,
}  # fmt: skip
MALFORMED = {
    "brackets": b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "nested in a field": b'{"model": "scripted", "metadata": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "not utf-8": b'{"model": "\xff\xfe"}',
    "nothing": b"",
    "null": b"null",
    "a number": b"1",
    "a list": b"[]",
    "half": b'{"model": "scripted", "messages": [',
    "two": b"{}{}",
    "gzip": gzip.compress(b" " * (16 * MIB)),
    "huge exponent": b'{"model": "scripted", "max_tokens": 1e400}',
    "huge number": b'{"model": "scripted", "max_tokens": ' + b"9" * 100_000 + b"}",
    "NaN": b'{"model": "scripted", "temperature": NaN}',
    "Infinity": b'{"model": "scripted", "temperature": -Infinity}',
    "a control character": b'{"model": "a\x00b"}',
}


@pytest.fixture(autouse=True)
def nothing_is_kept(open_server: Server) -> Any:
    """Both processes serve on, and have not grown."""
    pids = open_server.process.pid, open_server.engine_pid()
    before = [bytes_of(pid) for pid in pids]
    yield
    assert open_server.engine_pid() == pids[1]
    grown = [bytes_of(pid) - size for pid, size in zip(pids, before, strict=True)]
    assert max(grown) < ALLOWED_GROWTH, grown


@pytest.mark.parametrize("path", generation())
@pytest.mark.parametrize("field", ABSURD)
def test_20_absurd_parameters(http: httpx.Client, path: str, field: str) -> None:
    """Refused by name, or unknown to the dialect and refused as that."""
    name = GENERATION[path].max_tokens if field == "max_tokens" else field
    answer = http.post(path, json={**GENERATION[path].body("greet"), name: ABSURD[field]})
    assert 400 <= answer.status_code < 500, answer.text[:200]
    error = error_of(answer)
    word = field.partition("_")[0]
    assert word in error["message"] or name in str(error.get("param")) or "body" in error["message"]
    assert len(answer.content) < 5_000


@pytest.mark.parametrize("path", with_body())
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_21_malformed_bodies(http: httpx.Client, path: str, body: bytes) -> None:
    answer = http.post(path, content=body, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text[:200]
    error_of(answer)


@pytest.mark.parametrize("path", with_body())
def test_21_too_large(http: httpx.Client, path: str) -> None:
    answer = http.post(
        path, content=b'{"a": "' + b"x" * (5 * MIB) + b'"}', headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413
    many = json.dumps([{"role": "user", "content": "x"}] * 100_000).encode()
    answer = http.post(path, content=b'{"messages": ' + many + b', "tools": ' + many + b"}")
    assert 400 <= answer.status_code < 500


def test_21_declared_sizes_are_not_believed(open_server: Server) -> None:
    for path in with_body():
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
        assert statuses(exchange(open_server, f"{head}content-length: {10**9}\r\n\r\n".encode())) == [413]
        gzipped = f"{head}content-encoding: gzip\r\ncontent-length: 4\r\n\r\nabcd".encode()
        assert statuses(exchange(open_server, gzipped)) in ([400], [415])


@pytest.mark.parametrize("path", with_body())
@pytest.mark.parametrize("content", ['"a\\ud800b"', '"a\\u0000b"', '"\\u202e\\u2066"', '"\\n\\r\\u001b[31m"'])
def test_22_odd_text(http: httpx.Client, path: str, content: str) -> None:
    """Lone surrogates, NUL and controls: taken as text or refused, and the answer is always valid JSON."""
    body = json.dumps(with_body()[path]("PLACE")).replace('"PLACE"', content)
    answer = http.post(path, content=body.encode(), headers={"content-type": "application/json"})
    assert answer.status_code < 500, answer.text[:200]
    answer.json()


@pytest.mark.parametrize("path", with_body())
def test_22_wrong_types(http: httpx.Client, path: str) -> None:
    """Every field of the body once as null, a number, a text, a list and an object."""
    body = with_body()[path]("greet")
    for name in body:
        for wrong in (None, 1.5, -0.0, "text", [], [None], {}, {"a": 1}, True, [[]], [{"type": 1}]):
            answer = http.post(path, json={**body, name: wrong})
            assert answer.status_code < 500, (name, wrong, answer.text[:200])


@pytest.mark.parametrize("path", generation())
def test_23_empty_and_too_long_prompts(http: httpx.Client, path: str) -> None:
    long = http.post(path, json=GENERATION[path].body("x" * 5_000))
    assert long.status_code == 400
    message = error_of(long)["message"]
    assert "512" in message, message  # the context, and how long the prompt is
    empty = http.post(path, json=_emptied(GENERATION[path].body("")))
    assert empty.status_code == 400, empty.text[:200]


def _emptied(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, **{name: [] for name in ("messages", "input") if name in body}}


@pytest.mark.parametrize("path", generation())
def test_23_token_ids_out_of_range(http: httpx.Client, path: str) -> None:
    for name in ("prompt", "token_ids"):
        body = GENERATION[path].body("x")
        if name in body:
            for wrong in ([-1], [10**9], [2**40], [1.5], [[]]):
                answer = http.post(path, json={**body, name: wrong})
                assert answer.status_code == 400, answer.text[:200]
                error_of(answer)


@pytest.mark.parametrize("path", with_body())
def test_24_unknown_fields_are_refused(http: httpx.Client, path: str) -> None:
    answer = http.post(path, json={**with_body()[path]("greet"), "no_such_field": 1})
    assert answer.status_code == 400
    assert "no_such_field" in error_of(answer)["message"]


@pytest.mark.parametrize("path", generation())
@pytest.mark.parametrize("name", ["cache_salt", "user", "request_id"])
def test_25_salts_users_and_ids(http: httpx.Client, path: str, name: str) -> None:
    for value in ("a\nb", "\u5317" * 1000, "x" * MIB, "", "../../etc/passwd", "\x1b[31m"):
        answer = http.post(path, json={**GENERATION[path].body("greet"), name: value})
        assert answer.status_code < 500, answer.text[:200]
        headers = {"x-request-id": "x" * 60_000}
        assert http.post(path, json=GENERATION[path].body("greet"), headers=headers).status_code < 500


def test_25_request_ids_key_no_cache(http: httpx.Client) -> None:
    """Two requests of one id, at once and after each other, have their own answers."""
    first, second = {"prompt": "aaa", "max_tokens": 3}, {"prompt": "bbb", "max_tokens": 3}
    alone = [http.post("/v1/completions", json=body).json()["choices"] for body in (first, second)]
    same = [
        http.post("/v1/completions", json={**body, "request_id": "same"}).json()["choices"] for body in (first, second)
    ]
    assert same == alone
