"""Tests 43 to 48 of the list: errors that tell nothing, slots and caches that leak nothing, stores that are owned."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.base.hashing import key_hash
from appliance.engine.scripted import Script
from appliance.server.http.routes import ROUTES
from tests.security.conftest import KEYS
from tests.security.surface import GENERATION, error_of, everything, generation, path_of, routes, with_body
from tests.server.harness import Server, running

TELLING = re.compile(
    r"0x[0-9a-f]{6,}|Traceback|File \"|/(?:tmp|home|usr|root|proc|work)/|\.py\b|site-packages|object at"
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def test_43_errors_tell_nothing_of_the_inside(http: httpx.Client) -> None:
    """Every route, with bodies that make it fail in as many ways as we know."""
    wrong: list[Any] = [
        {}, [], 1, {"model": "x" * 500}, {"messages": [{}]}, {"messages": [{"role": 1}]}, {"prompt": {}},
        {"tools": [{}]}, {"response_format": {"type": "json_schema"}}, {"guided_json": {"$ref": "file:///etc/passwd"}},
        {"guided_regex": "("}, {"guided_grammar": "("}, {"stop": [None]}, {"logit_bias": {"x": 1}},
        {"stream_options": 1}, {"input": [{}]},
    ]  # fmt: skip
    for route in ROUTES:
        for method in route.methods:
            make = with_body().get(route.path)
            for body in wrong if method == "POST" else [None]:
                merged = {**(make("greet") if make else {}), **body} if isinstance(body, dict) else body
                answer = http.request(method, path_of(route), json=merged)
                assert answer.status_code != 500, (route.path, body)
                if answer.status_code >= 400:
                    assert not TELLING.search(answer.text), answer.text[:300]


def test_43_a_failing_engine_tells_nothing(tmp_path: Path) -> None:
    for path in generation():
        folder = tmp_path / path.replace("/", "_")
        folder.mkdir()
        with running(folder, Script(crash_at_step=1), **everything()) as server, server.http() as http:
            for stream in {False, GENERATION[path].streams}:
                answer = http.post(
                    path, json={**GENERATION[path].body("greet"), **({"stream": True} if stream else {})}
                )
                assert not TELLING.search(answer.text), answer.text[:300]


def test_44_recycled_slots_keep_nothing(tmp_path: Path) -> None:
    """Requests of every kind through two slots: each answers what it answers alone."""
    kinds: list[dict[str, Any]] = [
        {}, {"logit_bias": {"70": 30.0}}, {"allowed_token_ids": [80, 81]}, {"bad_words": ["y"]}, {"min_tokens": 3},
        {"presence_penalty": 1.0, "repetition_penalty": 1.5}, {"guided_regex": "[ab]{2,4}"}, {"logprobs": 2},
        {"guided_json": SCHEMA}, {"stop": ["z"]}, {"n": 2}, {"seed": 7}, {"guided_choice": ["left", "right"]},
    ]  # fmt: skip
    with running(tmp_path, Script(), max_num_seqs=2, prefix_caching=False) as server, server.http() as http:

        def ask(kind: dict[str, Any]) -> Any:
            body = {"prompt": "wx", "max_tokens": 6, "temperature": 0, **kind}
            answer = http.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            return [(choice["text"], choice["finish_reason"]) for choice in answer.json()["choices"]]

        alone = [ask(kind) for kind in kinds]
        assert len({json.dumps(answer) for answer in alone}) > 4  # the kinds do differ
        with ThreadPoolExecutor(8) as pool:
            for _ in range(3):
                assert list(pool.map(ask, kinds)) == alone


@pytest.fixture(scope="module")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    hashes = {name: key_hash(key) for name, key in KEYS.items()}
    plan = {**everything(isolate_caches=True), "key_hashes": hashes, "prompt_tokens_details": True}
    with running(tmp_path_factory.mktemp("isolated"), Script(), **plan) as server:
        yield server


def cached_tokens(answer: httpx.Response) -> int:
    """Returns the count by the dialect's name for it; -1 if it has none."""
    assert answer.status_code == 200, answer.text[:300]
    found = re.search(r'"(?:cached_tokens|cache_read_input_tokens)":(\d+)', answer.text)
    return int(found[1]) if found else -1


@pytest.mark.parametrize("path", generation())
def test_45_a_key_sees_nothing_of_anothers_cache(isolated: Server, path: str) -> None:
    text = (
        f"{path[::-1]}: a prompt of this route alone, with more tokens than one block has, and then some more of them"
    )
    body = GENERATION[path].body(text)
    with isolated.http() as http:
        seen = [
            cached_tokens(http.post(path, json=body, headers={"x-api-key": KEYS[name]}))
            for name in ("alice", "alice", "bob")
        ]
    assert seen[2] <= 0
    assert seen[1] != 0  # the key's own prompt is found again, where the dialect tells


def test_45_block_hashes_are_strong_and_chained() -> None:
    from appliance.spec.sections.cache import CacheSection

    assert CacheSection.model_fields["hash_algorithm"].default == "sha256"


def test_46_continuations_keep_the_key(isolated: Server) -> None:
    """A stored response that is continued runs under the caller's own salt."""
    text = "the long first message of a conversation that goes on, longer than a block of tokens"
    with isolated.http(headers={"x-api-key": KEYS["alice"]}) as http:
        first = http.post("/v1/responses", json={"input": text, "max_output_tokens": 3, "store": True})
        assert first.status_code == 200, first.text
        more = {"input": "go on", "previous_response_id": first.json()["id"], "max_output_tokens": 3}
        again = http.post("/v1/responses", json=more)
        assert again.status_code == 200
        assert cached_tokens(again) != 0
    with isolated.http(headers={"x-api-key": KEYS["bob"]}) as http:
        assert http.post("/v1/responses", json=more).status_code == 404


def test_47_what_is_stored_has_an_owner(alice: httpx.Client, bob: httpx.Client) -> None:
    """Walks every route with an id in its path: what alice made, bob gets the same answer for as for nothing."""
    made: dict[str, str] = {}
    if any(route.path == "/v1/responses" for route in routes("POST")):
        stored = alice.post("/v1/responses", json={"input": "greet", "store": True})
        made["response_id"] = stored.json()["id"]
    if any(route.path == "/v1/files" for route in routes("POST")):
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 1}}
        upload = alice.post(
            "/v1/files", files={"file": ("in.jsonl", json.dumps(line).encode())}, data={"purpose": "batch"}
        )
        assert upload.status_code == 200, upload.text
        made["file_id"] = upload.json()["id"]
        batch = {"input_file_id": made["file_id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        assert bob.post("/v1/batches", json=batch).status_code in (400, 404)
        created = alice.post("/v1/batches", json=batch)
        assert created.status_code == 200, created.text
        made["batch_id"] = created.json()["id"]
    for route in ROUTES:
        names = re.findall(r"{(\w+)(?::path)?}", route.path)
        if not names or names[0] == "model":
            continue
        assert names[0] in made, f"{route.path}: say here how alice makes a {names[0]}"
        for method in route.methods:
            theirs, nothing = (
                bob.request(method, route.path.replace("{" + names[0] + "}", value))
                for value in (made[names[0]], made[names[0]][:-4] + "0000")
            )
            assert theirs.status_code == nothing.status_code == 404, (method, route.path, theirs.text[:200])
            assert error_of(theirs)["message"].replace(made[names[0]], "") == error_of(nothing)["message"].replace(
                made[names[0]][:-4] + "0000", ""
            )
    for name, value in made.items():
        assert len(re.sub(r"^[a-z-]+_", "", value)) >= 24, name  # not to be guessed
    for path in ("/v1/files", "/v1/batches"):
        if any(route.path == path and "GET" in route.methods for route in ROUTES):
            assert bob.get(path).json()["data"] == []
            assert alice.get(path).json()["data"] != []


def test_48_freed_blocks_are_not_read(tmp_path: Path) -> None:
    """The scripted back-end reads every context back from its cells, and fails on one that was never written.

    Few blocks and no prefix cache: each request runs in what others have freed.
    """
    with (
        running(tmp_path, Script(), num_blocks=12, prefix_caching=False, max_num_seqs=4) as server,
        server.http() as http,
    ):

        def ask(letter: str) -> str:
            body = {"prompt": letter * 40, "max_tokens": 20, "temperature": 0}
            answer = http.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            return str(answer.json()["choices"][0]["text"])

        alone = [ask(letter) for letter in "abcdefgh"]
        assert len(set(alone)) == len(alone)
        with ThreadPoolExecutor(6) as pool:
            for _ in range(3):
                assert list(pool.map(ask, "abcdefgh")) == alone
