"""An answer in a lesser form says so in a header and a counter, or it is an error."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from appliance.catalog.degradations import DEGRADATIONS
from appliance.engine.scripted import Script
from appliance.plan.types import EnginePlan
from tests.server.harness import Server, running, write_plan
from tests.server.test_slo import counted

BODY = {"model": "scripted", "prompt": "a long prompt", "max_tokens": 2}


def answer(http: httpx.Client, **more: Any) -> httpx.Response:
    return http.post("/v1/completions", json={**BODY, **more})


def test_each_kind_is_counted_and_named(tmp_path: Path) -> None:
    with running(tmp_path, Script(), unknown_fields="allow") as server, server.http() as http:
        assert "x-degraded" not in answer(http).headers
        assert "x-degraded" not in answer(http, truncate_prompt_tokens=200).headers  # nothing was cut
        cut = answer(http, truncate_prompt_tokens=3)
        assert cut.status_code == 200, cut.text
        assert cut.headers["x-degraded"] == "truncated_prompt"
        assert answer(http, frobnicate=1, stream=True).headers["x-degraded"] == "ignored_field"
        both = answer(http, frobnicate=1, truncate_prompt_tokens=-1, max_tokens=1, prompt=["a" * 600, "b" * 600])
        assert both.status_code == 200, both.text
        assert both.headers["x-degraded"] == "ignored_field, truncated_prompt"
        assert "x-degraded" not in answer(http, frobnicate=1, n=1000).headers  # it is refused
        kinds = {each.kind: counted(http, "appliance_degradations_total", kind=each.kind) for each in DEGRADATIONS}
    assert kinds == {each.kind: 0 for each in DEGRADATIONS} | {"ignored_field": 2, "truncated_prompt": 2}


@pytest.mark.parametrize("policy", ["error", "warn"])
def test_the_plan_decides_whether_prompts_are_cut(tmp_path: Path, policy: str) -> None:
    with running(tmp_path, Script(), truncated_prompts=policy) as server, server.http() as http:
        cut = answer(http, truncate_prompt_tokens=3)
        assert cut.status_code == (400 if policy == "error" else 200)
        if policy == "error":
            assert cut.json()["error"]["code"] == "prompt_truncated"
        assert ("lesser form" in server.log.read_text()) == (policy == "warn")


def test_what_was_planned_is_said_with_every_answer(tmp_path: Path) -> None:
    path = write_plan(tmp_path, Script())
    plan = msgspec.json.decode(path.read_bytes(), type=EnginePlan)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(plan, degraded=("kernel_set", "context"))))
    server = Server(path, tmp_path)
    try:
        server.wait_for("ready")
        with server.http() as http:
            assert answer(http).headers["x-degraded"] == "kernel_set, context"
            assert "x-degraded" not in http.get("/v1/models").headers
            assert counted(http, "appliance_degradations_total", kind="context") == 1
    finally:
        server.close()


def test_the_guide_lists_every_kind() -> None:
    text = (Path(__file__).parents[2] / "docs/guides/errors.md").read_text()
    for each in DEGRADATIONS:
        when = "planned" if each.planned else "request"
        assert f"| `{each.kind}` | {when} | {each.what} | `{each.error}` |" in text
