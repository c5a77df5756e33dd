"""Several replicas behind one port: who dies or drains costs its own requests only, and figures tell them apart."""

import concurrent.futures
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.engine.scripted import Script
from tests.server.harness import Server, running, says, wait_until

NUM_REPLICAS = 3
LONG = "hello world " * 40  # so that twelve clients are there before one has its answer
SCRIPT = Script(replies=[says("greet", "hello world"), says("long", LONG)], step_seconds=0.02)
PLAN: dict[str, Any] = {
    "replicas": NUM_REPLICAS,
    "data": NUM_REPLICAS,
    "max_num_seqs": 4,
    "restart": "on-failure",
    "max_restarts": 3,
    "backoff_s": 0.1,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("replicas"), SCRIPT, **PLAN) as running_server:
        yield running_server


def engines(server: Server) -> dict[int, int]:
    """Number to pid."""
    pid, found = server.process.pid, {}
    for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        words = Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0")
        if b"appliance.engine" in words:
            number = words[words.index(b"--replica") + 1] if b"--replica" in words else b"0"
            found[int(number)] = int(each)
    return found


def by_engine(server: Server, name: str) -> dict[str, float]:
    with server.http() as http:
        text = http.get("/metrics").text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                found[sample.labels["engine"]] = found.get(sample.labels["engine"], 0.0) + sample.value
    return found


def readiness(server: Server) -> dict[str, Any]:
    with server.http() as http:
        body: dict[str, Any] = http.get("/readyz").json()
    return body


def stream(server: Server, content: str, number: int = 0) -> str:
    """Returns the text of a streamed answer, and the error's message where it failed."""
    body = {"messages": [{"role": "user", "content": content}], "stream": True, "user": str(number)}
    text = ""
    with server.http() as http, http.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            return f"status {answer.status_code}"
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = httpx.Response(200, content=line[6:]).json()
                text += (
                    event["error"]["message"] if "error" in event else event["choices"][0]["delta"].get("content", "")
                )
    return text


def test_all_are_there_and_each_takes_its_share(server: Server) -> None:
    assert set(engines(server)) == set(range(NUM_REPLICAS))
    assert by_engine(server, "appliance_engine_ready") == {"0": 1.0, "1": 1.0, "2": 1.0}
    before = by_engine(server, "appliance_requests_finished_total")
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert set(pool.map(lambda number: stream(server, "long", number), range(12))) == {LONG}
    after = by_engine(server, "appliance_requests_finished_total")
    assert {engine: count - before.get(engine, 0.0) for engine, count in after.items()} == {
        "0": 4.0,
        "1": 4.0,
        "2": 4.0,
    }


def test_one_that_is_killed_costs_its_own_requests_only(server: Server) -> None:
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        streams = [pool.submit(stream, server, "long", number) for number in range(12)]
        wait_until(lambda: sum(by_engine(server, "appliance_requests_running").values()) == 12, "all run")
        victim = engines(server)[1]
        os.kill(victim, signal.SIGKILL)
        seen = [readiness(server)]
        wait_until(lambda: seen.append(readiness(server)) or seen[-1].get("degraded") is True, "one is told as away")
        body = seen[-1]
        assert body["ready"]
        assert [each["engine"] for each in body["replicas"] if each["state"] != "ready"] == [1]
        assert stream(server, "greet") == "hello world"
        texts = [each.result() for each in streams]
    assert texts.count(LONG) == 8
    assert sum("SIGKILL" in each for each in texts) == 4
    wait_until(lambda: readiness(server)["degraded"] is False, "it is back")
    assert engines(server)[1] != victim
    assert by_engine(server, "appliance_engine_restarts_total") == {"0": 0.0, "1": 1.0, "2": 0.0}
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert set(pool.map(lambda number: stream(server, "long", number), range(12))) == {LONG}
