"""POST /collective_rpc through a server: what every rank returned, and errors by name."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from appliance.base.hashing import key_hash
from appliance.engine.scripted import Script

from .harness import running

EXTENSION = "tests.engine.extensions.Reports"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("extended")
    with running(folder, Script(), worker_extension_cls=EXTENSION) as server, server.http() as client:
        yield client


def test_results_come_in_the_order_of_ranks(client: httpx.Client) -> None:
    answer = client.post("/collective_rpc", json={"method": "where", "args": [], "kwargs": {}, "timeout": 5})
    assert answer.status_code == 200
    assert answer.json() == {"results": [{"rank": 0, "of": 1}]}
    body = {"method": "add", "args": [2], "kwargs": {"second": 3}, "timeout": None}
    assert client.post("/collective_rpc", json=body).json() == {"results": [5]}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"method": "fails"}, 500, "rank 0: LookupError: no idea"),
        ({"method": "exits"}, 500, "SystemExit"),
        ({"method": "hangs", "timeout": 0.2}, 500, "more than 0.2 s"),
        ({"method": "missing"}, 404, "no method missing"),
        ({"method": "_hidden"}, 404, "no method _hidden"),
        ({"method": "add", "args": [1, 2, 3, 4]}, 500, "TypeError"),
        ({}, 400, "method"),
        ({"method": "where", "timeout": 0}, 400, "timeout"),
        ({"method": "where", "timeout": 3600}, 400, "at most 30"),
        ({"method": "where", "timeout": 1e308}, 400, "at most 30"),
        ({"method": "add", "args": [2**64]}, 400, "64 bits"),
        ({"method": "where", "kwargs": {"a": -(2**63) - 1}}, 400, "64 bits"),
        ({"method": 3}, 400, "method"),
    ],
)
def test_errors_are_named_and_cost_only_their_call(
    client: httpx.Client, body: dict[str, object], status: int, words: str
) -> None:
    answer = client.post("/collective_rpc", json=body)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]
    said = client.post("/v1/completions", json={"model": "scripted", "prompt": "a", "max_tokens": 2})
    assert said.status_code == 200


def test_a_key_of_some_models_may_not_call_it(tmp_path: Path) -> None:
    keys = {"key_hashes": {"some": key_hash("some")}, "key_rules": {"some": {"models": ["alias"]}}}
    limited = {"authorization": "Bearer some"}
    extended = running(tmp_path, Script(), worker_extension_cls=EXTENSION, **keys)
    with extended as server, server.http(headers=limited) as client:
        answer = client.post("/collective_rpc", json={"method": "where"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_allowed")


def test_without_a_class_or_debug_nothing_is_called(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "closed").mkdir()
    with running(tmp_path / "plain", Script()) as server, server.http() as client:
        answer = client.post("/collective_rpc", json={"method": "where"})
        assert answer.status_code == 400
        assert "parallelism.worker_extension_cls" in answer.json()["error"]["message"]
    closed = {"apis": ["openai"], "worker_extension_cls": EXTENSION}
    with running(tmp_path / "closed", Script(), **closed) as server, server.http() as client:
        answer = client.post("/collective_rpc", json={"method": "where"})
        assert answer.status_code == 404
        assert "endpoints.apis" in answer.json()["error"]["message"]
