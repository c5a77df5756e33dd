"""Test 70 of the list: schemathesis over our own OpenAPI document, against the scripted engine.

No 5xx, no undocumented status, no undocumented content type, no answer that breaks its schema. Seeded and bounded.
"""

import json
from collections.abc import Iterator
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

from appliance.engine.scripted import Script
from appliance.server.openapi import document
from appliance.server.routes import ROUTES
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
    assert set(served["paths"]) == {route.path.replace(":path}", "}") for route in ROUTES}


def test_every_schema_of_the_document_is_one(fuzzed: Server) -> None:
    with httpx.Client(base_url=fuzzed.url) as http:
        for schema in http.get("/openapi.json").json()["components"]["schemas"].values():
            Draft202012Validator.check_schema(schema)
