"""What an unknown field of a request does is the plan's to say; it is never dropped in silence."""

from pathlib import Path

import pytest

from appliance.engine.scripted import Script
from tests.server.harness import running, says

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "greet"}]}


@pytest.mark.parametrize("policy", ["warn", "allow"])
def test_unknown_fields_are_named(tmp_path: Path, policy: str) -> None:
    script = Script(replies=[says("greet", "hello")])
    with running(tmp_path, script, unknown_fields=policy) as server, server.http() as http:
        messages = [{"role": "user", "content": "greet", "mood": 1}, {"role": "user", "content": "greet", "mood": 2}]
        body = {"messages": messages[:1], "frobnicate": {"a": 1}, "odd,name": 2}
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.json()["choices"][0]["message"]["content"] == "hello"
        named = answer.headers["x-ignored-fields"].split(",")
        assert sorted(named) == ["frobnicate", "messages[0].mood", "odd%2Cname"]
        streamed = http.post("/v1/chat/completions", json={**body, "stream": True})
        assert sorted(streamed.headers["x-ignored-fields"].split(",")) == sorted(named)
        assert "x-ignored-fields" not in http.post("/v1/chat/completions", json=CHAT).headers
        unbuilt = http.post("/v1/chat/completions", json={**CHAT, "prediction": {"type": "content"}})
        assert (unbuilt.status_code, unbuilt.json()["error"]["param"]) == (400, "prediction")
        wrong = http.post("/v1/chat/completions", json={**CHAT, "frobnicate": 1, "n": "two"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "n")
        many = http.post("/v1/chat/completions", json={**CHAT, **{f"field{i}": 1 for i in range(100)}})
        assert many.json()["error"]["code"] == "unknown_parameter"
        assert ("frobnicate" in server.log.read_text()) == (policy == "warn")
