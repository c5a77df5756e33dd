"""Test 70 of the list: schemathesis over our own OpenAPI document, against the scripted engine.

No 5xx, no undocumented status, no undocumented content type, no answer that breaks its schema. Seeded and bounded.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from jsonschema import Draft202012Validator
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import appliance.server
from appliance.base.hashing import key_hash
from appliance.engine.scripted import Script
from appliance.plan.serving_types import KeyPlan
from appliance.server.http.openapi import document
from appliance.server.http.routes import ROUTES
from tests.security.surface import everything
from tests.server.harness import Server, running, says

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SCHEMA = schemathesis.openapi.from_dict(json.loads(document(ROUTES, has_keys=False)))
EXAMPLES = 12  # of each operation


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    plan = {**everything(), "max_model_len": 256, "default_sampling": {"max_tokens": 4}}
    with running(tmp_path_factory.mktemp("fuzzed"), Script(replies=[says("greet", "hello")]), **plan) as server:
        yield server


@SCHEMA.parametrize()
@hypothesis.settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)  # fmt: skip
def test_70_every_operation(fuzzed: Server, case: Any) -> None:
    case.call_and_validate(base_url=fuzzed.url, checks=CHECKS, timeout=30)


def test_the_document_is_the_servers(fuzzed: Server) -> None:
    with fuzzed.http() as http:
        served = http.get("/openapi.json").json()
    off = {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}  # of adapters, which this model has not
    off |= {"/sleep", "/wake_up", "/is_sleeping"}  # see tests/e2e/test_sleep.py
    off |= {"/start_profile", "/stop_profile"}  # where a folder is named; see tests/server/test_profiles.py
    off |= {"/pause", "/resume", "/is_paused"}  # see tests/server/test_pause.py
    off |= {"/update_weights_from_disk", "/get_weight_version"}  # see tests/e2e/test_weight_updates.py
    assert set(served["paths"]) == {route.path.replace(":path}", "}") for route in ROUTES} - off


def test_every_schema_of_the_document_is_one(fuzzed: Server) -> None:
    with httpx.Client(base_url=fuzzed.url) as http:
        for schema in http.get("/openapi.json").json()["components"]["schemas"].values():
            Draft202012Validator.check_schema(schema)


def test_every_body_is_documented() -> None:
    """With its fields, except where a body is of two kinds; routes that read none ask for none."""
    plain = {"schema": {"type": "object"}}
    found = set()
    for path, operations in json.loads(document(ROUTES, has_keys=False))["paths"].items():
        content = operations.get("post", {}).get("requestBody", {}).get("content", {})
        found |= {path} if content.get("application/json") == plain else set()
    assert found == {"/invocations"}


def documented(http: httpx.Client, path: str, method: str) -> dict[str, Any]:
    answers: dict[str, Any] = http.get("/openapi.json").json()["paths"][path][method.lower()]["responses"]
    return answers


def test_every_status_that_the_code_says_is_documented(fuzzed: Server) -> None:
    """Read from the source: refusals of the transport and of the gate, which no fuzzing of bodies meets."""
    folder = Path(appliance.server.__file__).parent
    source = "".join(path.read_text() for path in folder.rglob("*.py"))
    said = set(re.findall(r"(?:ApiError|_refuse|status_code=)\(?([4-5]\d{2})", source)) - {"500"}  # that is our fault
    with fuzzed.http() as http:
        answers = documented(http, "/v1/chat/completions", "post")
    assert {"408", "413", "415", "426", "429", "431", "503"} <= said <= set(answers)


def test_refusals_of_transport_and_limits_keep_the_document(tmp_path: Path) -> None:
    """Every route with a body, with too much of everything: the status is documented and the body is the error."""
    limits = {
        "max_body_bytes": 20_000,
        "max_header_bytes": 8192,
        "key_hashes": {"a": key_hash("k"), "b": key_hash("few")},
    }
    rules = {**everything(key_rules={"b": KeyPlan(requests_per_minute=1)}), **limits}
    ways: dict[str, dict[str, Any]] = {
        "401": {"headers": {"x-api-key": "wrong"}},
        "413": {"content": b"{" + b" " * 30_000 + b"}", "headers": {"content-type": "application/json"}},
        "415": {"content": b"{}", "headers": {"content-type": "text/plain"}},
        "426": {"headers": {"connection": "upgrade", "upgrade": "websocket"}},
        "429": {"json": {}, "headers": {"x-api-key": "few"}},
        "431": {"headers": {"x-large": "x" * 9000}},
    }
    seen: set[str] = set()
    with running(tmp_path, Script(), **rules) as server, server.http(headers={"x-api-key": "k"}) as http:
        paths = http.get("/openapi.json").json()["paths"]
        for path, operations in paths.items():
            for method, operation in operations.items():
                for asked in ways.values() if "requestBody" in operation else ():
                    answer = http.request(method, path.replace("{", "").replace("}", ""), **asked)
                    status = str(answer.status_code)
                    assert status in operation["responses"], (method, path, status)
                    assert "error" in answer.json()
                    seen.add(status)
    assert set(ways) <= seen
