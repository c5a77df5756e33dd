"""Tests 62 and 64 to 69 of the list: logs, secrets, events, upgrades, smuggling, metrics. 70 is test_openapi_fuzz."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.engine.scripted import Script
from tests.security.surface import GENERATION, everything, generation, path_of, routes, with_body
from tests.server.harness import Server, continues, running, says
from tests.server.test_transport import SMUGGLED
from tests.server.wire import exchange, statuses

FORGED = "\n12:00:00.000 error server: forged\x1b[2J"


def test_62_no_request_forges_a_log_line(tmp_path: Path) -> None:
    plan = {**everything(access_log=True), "log_requests": True, "request_id_headers": True, "logs": {"level": "debug"}}
    with running(tmp_path, Script(), **plan) as server, server.http() as http:
        for path, make in with_body().items():
            body = make(FORGED)
            http.post(path, json=body)
            http.post(path, json={**body, "model": FORGED})
            http.post(path, json={**body, FORGED: 1})
            http.post(path + "%0a12:00:00.000%20error%20forged%1b", json=body)
            http.post(path, json=body, headers={"x-request-id": "a%0ab", "user-agent": "\x7f"})
        log = server.log.read_text()
        assert "\x1b" not in log
        assert not [line for line in log.splitlines() if line.startswith("12:00:00.000")]
        assert all(re.match(r"\d\d:\d\d:\d\d\.\d{3} ", line) for line in log.splitlines())


def test_64_secrets_are_not_rendered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Interpolated values are masked in diagnostics; a variable is read only where the file names it."""
    from appliance.cli.app import main

    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "api_version: appliance/v1\nkind: Deployment\nname: x\nmodel: {source: ./m}\n"
        'endpoints: {auth: {keys: [{name: a, hash: "${env:KEY_OF_ALICE}"}]}}\n'
    )
    import os
    from unittest import mock

    with mock.patch.dict(os.environ, {"KEY_OF_ALICE": "plaintext-secret", "OTHER_SECRET": "undeclared-secret"}):
        for verb in (["validate"], ["plan"], ["plan", "--json"]):
            assert main([*verb, str(spec)]) != 0
    told = capsys.readouterr()
    assert "plaintext" not in told.out + told.err
    assert "undeclared" not in told.out + told.err


def test_65_files_are_read_where_they_are_named(tmp_path: Path) -> None:
    """The spec has no includes; ${file:} is the one way to read, and it reads whole, small, plain files."""
    from appliance.spec.sections import endpoints

    assert "include" not in Path(endpoints.__file__).with_name("model.py").read_text()


@pytest.mark.parametrize("path", [path for path in generation() if GENERATION[path].streams])
def test_66_events_hold_any_text(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    """Line ends, field names and nulls of a text stay inside its event, and the stream always ends."""
    said = "a\n\ndata: [DONE]\r\nevent: x\n\nid: 1\u2028\u0000\ud7ff"
    replies = [says("greet", said), continues("greet", said)]
    folder = tmp_path_factory.mktemp("events")
    with running(folder, Script(replies=replies), **everything()) as server, server.http() as http:
        body = {**GENERATION[path].body("greet"), "stream": True, GENERATION[path].max_tokens: 100}
        answer = http.post(path, json=body)
        assert answer.status_code == 200, answer.text[:300]
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = answer.text.split("\n\n")
        assert events.pop() == ""
        texts = []
        for event in events:
            lines = event.split("\n")
            assert all(line.startswith(("data: ", "event: ")) for line in lines), event
            data = lines[-1].removeprefix("data: ")
            if data != "[DONE]":
                texts.extend(_texts(json.loads(data)))
        assert said.rstrip("\ud7ff") in "".join(texts)


def _texts(value: Any) -> Iterator[str]:
    """Every text of an event, whatever the dialect calls it."""
    if isinstance(value, dict):
        for name, below in value.items():
            if name in ("text", "content", "delta") and isinstance(below, str):
                yield below
            else:
                yield from _texts(below)
    elif isinstance(value, list):
        for below in value:
            yield from _texts(below)


def test_66_a_failure_ends_the_stream(tmp_path: Path) -> None:
    with running(tmp_path, Script(crash_at_step=4), **everything()) as server, server.http() as http:
        answer = http.post(
            "/v1/chat/completions", json={**GENERATION["/v1/chat/completions"].body("x"), "stream": True}
        )
        assert '"error"' in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")


def test_67_upgrades_are_refused(open_server: Server) -> None:
    for route in routes():
        head = (
            f"{route.methods[0]} {path_of(route)} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        )
        assert statuses(exchange(open_server, f"{head}sec-websocket-version: 13\r\n\r\n".encode())) == [426]


@pytest.mark.parametrize("name", ["length and chunked", "two lengths", "bare line feeds", "folded header"])
def test_68_smuggling_over_every_route(open_server: Server, name: str) -> None:
    for route in routes("POST"):
        data = SMUGGLED[name].replace(b"/tokenize", path_of(route).encode(), 1)
        assert statuses(exchange(open_server, data)) == [400]


def test_69_metrics_have_no_labels_of_requests(http: httpx.Client) -> None:
    def series() -> set[str]:
        lines = http.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}

    def ask(number: int) -> None:
        for path, make in with_body().items():
            http.post(path, json=make("greet"))
            http.post(path, json={**make("greet"), "model": f"unknown-{number}", "user": f"user-{number}"})
            http.get(f"{path}/unknown-{number}")
        http.get(f"/unknown-{number}")
        http.request("PATCH", f"/unknown-{number}")

    ask(0)
    series()  # its own answer is a series as well
    before = series()
    for number in range(1, 20):
        ask(number)
    assert series() == before
    assert "unknown" not in "".join(before)
