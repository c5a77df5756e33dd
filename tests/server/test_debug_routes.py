"""The engine's profiler over HTTP: where the plan serves it, and by the benchmark's client."""

from pathlib import Path

import pytest

from appliance.base.errors import ApplianceError
from appliance.bench.remote_profile import start_profile, stop_profile
from appliance.bench.sse import BenchTarget
from appliance.engine.scripted import Script

from .harness import running


def test_a_server_is_profiled(tmp_path: Path) -> None:
    with running(tmp_path, Script(), apis=["openai", "debug"]) as server:
        target = BenchTarget(url=server.url, model="scripted", api_key=None)
        start_profile(target)
        with server.http() as client:
            answer = client.post("/v1/completions", json={"model": "scripted", "prompt": "a", "max_tokens": 5})
        assert answer.status_code == 200
        profile = stop_profile(target)
        steps = {kind: found.steps for kind, found in profile.kinds.items()}
        assert steps == {"prefill": 1, "decode": 4}  # the prompt is one token, and a prompt all the same
        assert {"MainThread", "engine-front", "server"} <= set(profile.threads)
        with pytest.raises(ApplianceError, match="stopped by someone else"):
            stop_profile(target)


def test_it_is_not_served_unless_asked_for(tmp_path: Path) -> None:
    with running(tmp_path, Script(), apis=["openai"]) as server:
        with pytest.raises(ApplianceError, match="cannot be profiled") as refused:
            start_profile(BenchTarget(url=server.url, model="scripted", api_key=None))
        assert "endpoints.apis" in (refused.value.hint or "")
