"""Several API processes before one engine: they share the socket, the rules of keys, the figures and the store."""

import concurrent.futures
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.base.hashing import key_hash
from appliance.engine.scripted import Script
from tests.server.harness import Server, running, says, wait_until

NUM_WORKERS = 3
GREET = {"messages": [{"role": "user", "content": "greet"}]}
LONG = "hello world " * 20
SCRIPT = Script(replies=[says("greet", "hello world"), says("long", LONG)], step_seconds=0.02)
KEYS = {"limited": {"requests_per_minute": 10}, "narrow": {"max_concurrency": 2}, "free": {}}
PLAN: dict[str, Any] = {
    "key_hashes": {name: key_hash(name) for name in KEYS},
    "api_servers": NUM_WORKERS,
    "key_rules": KEYS,
    "server_load_tracking": True,
    "max_num_seqs": 16,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("workers"), SCRIPT, **PLAN) as running_server:
        yield running_server


def children(server: Server) -> list[int]:
    pid = server.process.pid
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found]


def workers(server: Server) -> dict[int, int]:
    """Index to pid."""
    found: dict[int, int] = {}
    for pid in children(server):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"appliance.server.workers" in command:
            found[int(command.split(b"--index=")[1].split(b"\0")[0])] = pid
    return found


def connections_of(pid: int) -> int:
    """Sockets that the process has, its listener and channel among them."""
    links = [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
    return sum(os.path.exists(link) and os.readlink(link).startswith("socket:") for link in links)


def keyed(server: Server, key: str = "free") -> httpx.Client:
    return server.http(headers={"authorization": f"Bearer {key}"})


def figure(server: Server, start: str) -> float:
    with keyed(server) as http:
        lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith(start)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def stream(server: Server, content: str, started: Any = None) -> str:
    """The text of a streamed answer, on a connection of its own. `started` is called at its beginning."""
    body = {"messages": [{"role": "user", "content": content}], "stream": True}
    text = ""
    with keyed(server) as http, http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                if started is not None:
                    started()
                    started = None
                text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    return text


def test_all_take_part(server: Server) -> None:
    """64 connections at once: nobody is left without, and the figures are of all."""
    before = figure(server, "appliance_requests_finished_total")
    http_before = figure(server, 'appliance_http_requests_total{model_name="scripted",route="/v1/chat/completions"')
    idle = {index: connections_of(pid) for index, pid in workers(server).items()}
    clients = [keyed(server) for _ in range(64)]
    try:
        with concurrent.futures.ThreadPoolExecutor(len(clients)) as pool:
            assert {answer.status_code for answer in pool.map(lambda client: client.get("/livez"), clients)} == {200}
        spread = {index: connections_of(pid) - idle[index] for index, pid in workers(server).items()}
        assert sum(spread.values()) >= 60
        assert all(spread.values())
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda client: client.post("/v1/chat/completions", json=GREET), clients))
    finally:
        for client in clients:
            client.close()
    assert {answer.json()["choices"][0]["message"]["content"] for answer in answers} == {"hello world"}
    assert figure(server, "appliance_requests_finished_total") == before + 64
    name = 'appliance_http_requests_total{model_name="scripted",route="/v1/chat/completions"'
    assert figure(server, name) == http_before + 64
    assert figure(server, "appliance_request_seconds_count") >= 64
    assert figure(server, "appliance_engine_ready") == 1
    assert figure(server, "appliance_generation_tokens_total") > 0


def test_a_killed_process_takes_only_its_own(server: Server) -> None:
    """Streams of the others go on, another process takes its place, and what was counted stays counted."""
    finished = figure(server, "appliance_requests_finished_total")  # the keeper has counted so far
    begun: list[int] = []
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        streams = [pool.submit(stream, server, "long", lambda: begun.append(1)) for _ in range(9)]
        wait_until(lambda: len(begun) == 9, "all have begun")
        before = workers(server)
        victim = before[1]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: workers(server).get(1, victim) != victim, "another takes over")
        texts, lost = [], 0
        for each in streams:
            try:
                texts.append(each.result(30))
            except (httpx.RemoteProtocolError, httpx.ReadError):
                lost += 1
    assert set(texts) == {LONG}
    assert len(texts) >= 1
    after = workers(server)
    assert (after[0], after[2]) == (before[0], before[2])
    with keyed(server) as http:
        assert http.get("/readyz").json()["restarts"] == 0
    assert figure(server, "appliance_requests_finished_total") >= finished + len(texts)
    wait_until(lambda: figure(server, "appliance_requests_running") == 0, "its sequences are aborted in the engine")
    wait_until(lambda: connections_of(workers(server)[1]) >= 2, "the new one is there")
    assert {stream(server, "greet") for _ in range(6)} == {"hello world"}


def test_rules_of_keys_are_shared(server: Server) -> None:
    statuses = []
    for _ in range(14):
        with keyed(server, "limited") as http:
            statuses.append(http.post("/tokenize", json={"prompt": "x"}).status_code)
    assert statuses.count(200) == 10
    assert statuses.count(429) == 4


def test_concurrency_of_a_key_is_shared(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "long"}]}

    def ask(_: int) -> int:
        with keyed(server, "narrow") as http:
            return http.post("/v1/chat/completions", json=body).status_code

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(ask, range(8)))
    assert sorted(statuses) == [200] * 2 + [429] * 6
    assert ask(0) == 200  # their places are free again


def test_load_is_of_all(server: Server) -> None:
    def load() -> int:
        with keyed(server) as http:
            return int(http.get("/load").json()["server_load"])

    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        streams = [pool.submit(stream, server, "long") for _ in range(5)]
        wait_until(lambda: load() == 5, "all are open")
        assert {each.result() for each in streams} == {LONG}
    wait_until(lambda: load() == 0, "all are closed")


def test_what_is_stored_is_everybodys(server: Server) -> None:
    with keyed(server) as http:
        made = http.post("/v1/responses", json={"input": "greet"}).json()["id"]
    for _ in range(6):
        with keyed(server) as http:
            assert http.get(f"/v1/responses/{made}").status_code == 200


def test_a_batch_runs_once_whoever_took_it(server: Server) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": GREET}
    made = []
    for _ in range(4):
        with keyed(server) as http:
            files = {"file": ("in.jsonl", json.dumps(line).encode() + b"\n"), "purpose": (None, "batch")}
            file_id = http.post("/v1/files", files=files).json()["id"]
            wish = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
            made.append(http.post("/v1/batches", json=wish).json()["id"])

    def ended() -> bool:
        with keyed(server) as http:
            found = [http.get(f"/v1/batches/{each}").json() for each in made]
        return all(each["status"] == "completed" and each["request_counts"]["completed"] == 1 for each in found)

    wait_until(ended, "all are answered", 20.0)


def test_sigterm_drains_all(tmp_path: Path) -> None:
    with running(tmp_path, SCRIPT, **PLAN) as server, concurrent.futures.ThreadPoolExecutor(6) as pool:
        begun: list[int] = []
        streams = [pool.submit(stream, server, "long", lambda: begun.append(1)) for _ in range(6)]
        wait_until(lambda: len(begun) == 6, "all have begun")
        family = children(server)
        server.terminate()
        assert {each.result() for each in streams} == {LONG}
        assert server.process.wait(20) == 0
        assert server.events()[-1]["event"] == "stopped"
        assert not any(Path(f"/proc/{pid}").exists() for pid in family)


def test_workers_end_with_a_killed_keeper(tmp_path: Path) -> None:
    with running(tmp_path, SCRIPT, **PLAN) as server:
        family = children(server)
        assert len(family) == NUM_WORKERS + 1
        server.process.kill()
        server.process.wait()

        def is_gone(pid: int) -> bool:
            stat = Path(f"/proc/{pid}/stat")
            return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"

        wait_until(lambda: all(map(is_gone, family)), "all have ended", 20.0)


def test_a_killed_engine_fails_the_requests_of_all_and_comes_back(tmp_path: Path) -> None:
    with running(tmp_path, SCRIPT, restart="on-failure", max_restarts=3, backoff_s=0.1, **PLAN) as server:
        begun: list[int] = []
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            streams = [pool.submit(stream, server, "long", lambda: begun.append(1)) for _ in range(6)]
            wait_until(lambda: len(begun) == 6, "all have begun")
            os.kill(server.engine_pid(), signal.SIGKILL)
            for each in streams:
                with pytest.raises(KeyError):  # an error event has no choices
                    each.result(20)
        wait_until(lambda: figure(server, "appliance_engine_ready") == 1, "it is back")
        wait_until(lambda: _is_ready(server), "a worker says so")
        assert figure(server, "appliance_engine_restarts_total") == 1
        assert len(workers(server)) == NUM_WORKERS


def _is_ready(server: Server) -> bool:
    with keyed(server) as http:
        return all(http.get("/readyz").status_code == 200 for _ in range(3))


def test_a_worker_that_cannot_start_ends_the_server(tmp_path: Path) -> None:
    plan = {**PLAN, "middleware": ["no_such_module.Thing"]}
    with running(tmp_path, SCRIPT, wait=False, **plan) as server:
        assert server.process.wait(30) == 1
        failed = [event for event in server.events() if event["event"] == "failed"]
        assert "no_such_module" in failed[-1]["reason"]


def test_a_process_that_hangs_is_replaced(tmp_path: Path) -> None:
    """Six counts in a row that nobody answers; the test asks for them, so it waits for no clock."""
    with running(tmp_path, SCRIPT, **PLAN) as server:
        victim = workers(server)[2]
        os.kill(victim, signal.SIGSTOP)

        def is_replaced() -> bool:
            with keyed(server) as http, contextlib.suppress(httpx.ReadTimeout):
                http.get("/metrics", timeout=3.0)
            return workers(server).get(2, victim) != victim

        wait_until(is_replaced, "another process is there", 60.0)
        wait_until(lambda: stream(server, "greet") == "hello world", "it serves")


def test_a_unix_socket_is_shared(tmp_path: Path) -> None:
    uds = str(tmp_path / "api.sock")
    plan = {**PLAN, "uds": uds}
    with running(tmp_path, SCRIPT, **plan) as server:
        with httpx.Client(transport=httpx.HTTPTransport(uds=uds), base_url="http://localhost", timeout=20.0) as http:
            deep = http.get("/readyz", params={"deep": "1"}).json()
        assert (deep["ready"], deep["deep"]["result"]) == (True, "ok")
        server.terminate()
        assert server.process.wait(20) == 0
    assert not os.path.exists(uds)
