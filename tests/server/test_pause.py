"""POST /pause, /resume and GET /is_paused: streams stand still, requests wait, and nobody takes the engine for hung."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from appliance.base.hashing import key_hash
from appliance.deploy.pause import pause_text, read_pause
from appliance.engine.pause_messages import PAUSE_MODES
from appliance.engine.scripted import Script
from appliance.service.control import CONTROL_FILE, RetireCommand
from tests.server.harness import Server, wait_until
from tests.server.harness import running as harness_running
from tests.server.test_replicas import engines

SLOW = Script(step_seconds=0.01)
ALLOWED = ("/srv/checkpoints",)
RESTARTS: dict[str, Any] = {"max_restarts": 3, "backoff_s": 0.1, "restart": "on-failure"}


def running(folder: Path, script: Script, **changes: Any) -> AbstractContextManager[Server]:
    return harness_running(folder, script, **{"weight_update_paths": ALLOWED, **changes})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("paused"), SLOW, heartbeat_timeout_s=1.0) as found:
        yield found


def post(server: Server, path: str, status: int = 200) -> Any:
    with server.http() as http:
        answer = http.post(path)
    assert answer.status_code == status, answer.text
    return answer.json()


def get(server: Server, path: str) -> Any:
    with server.http() as http:
        return http.get(path).json()


class Stream:
    """A completion whose tokens are counted as they come."""

    def __init__(self, server: Server, num_tokens: int = 200) -> None:
        self.text, self.ends = "", list[str | None]()
        self.error: str | None = None
        self._body = {"model": "scripted", "prompt": "a", "max_tokens": num_tokens, "stream": True, "ignore_eos": True}
        self._server = server
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with self._server.http() as http, http.stream("POST", "/v1/completions", json=self._body) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    self.error = event["error"]["message"]
                    continue
                self.text += event["choices"][0]["text"]
                self.ends.append(event["choices"][0]["finish_reason"])

    def flows(self) -> "Stream":
        wait_until(lambda: len(self.ends) > 3, "the stream flows")
        return self

    def end(self) -> str | None:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.ends[-1]


def test_what_is_kept_stands_still_longer_than_a_heartbeat_and_goes_on(server: Server) -> None:
    whole = Stream(server)
    assert whole.end() == "length"
    assert get(server, "/is_paused") == {"is_paused": False, "mode": None}
    stream = Stream(server).flows()
    assert post(server, "/pause?mode=keep") == {"status": "paused"}
    assert get(server, "/is_paused") == {"is_paused": True, "mode": "keep"}
    engine = server.engine_pid()
    late = Stream(server, 3)
    time.sleep(0.1)
    said = len(stream.ends)
    time.sleep(2.0)
    assert (len(stream.ends), len(late.ends)) == (said, 0)
    told = get(server, "/readyz")
    assert (told["ready"], told["paused"]) == (True, True)
    begun = time.monotonic()
    deep = get(server, "/readyz?deep=1")
    assert time.monotonic() - begun < 2.0
    assert (deep["ready"], deep["deep"]["result"]) == (True, "busy")
    assert "POST /resume" in deep["deep"]["reason"]
    with server.http() as http:
        metrics = http.get("/metrics").text
    assert read_pause(metrics) == "keep"
    assert pause_text("keep") == "keep: open ones stand still, new ones wait; POST /resume ends it"
    assert post(server, "/resume") == {"status": "resumed"}
    assert stream.end() == "length"
    assert stream.text == whole.text
    assert late.end() == "length"
    assert get(server, "/readyz")["paused"] is False
    assert server.engine_pid() == engine
    with server.http() as http:
        assert read_pause(http.get("/metrics").text) is None
    assert pause_text(None) is None
    assert all(pause_text(mode) for mode in PAUSE_MODES)


def test_a_pause_ends_what_is_open_or_waits_for_it(server: Server) -> None:
    stream = Stream(server).flows()
    post(server, "/pause")
    assert stream.end() == "abort"
    post(server, "/resume")
    stream = Stream(server, 60).flows()
    post(server, "/pause?mode=wait&clear_cache=false")
    assert stream.end() == "length", "it is over when the pause has begun"
    stream = Stream(server).flows() if post(server, "/resume") else stream
    post(server, "/pause?wait_for_inflight_requests=true")
    assert stream.end() == "length"
    post(server, "/resume")
    assert post(server, "/resume") == {"status": "resumed"}


def test_a_client_that_leaves_ends_what_is_kept(server: Server) -> None:
    body = {"model": "scripted", "prompt": "a", "max_tokens": 300, "stream": True, "ignore_eos": True}
    with server.http() as http, http.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
        post(server, "/pause?mode=keep")
    with server.http() as http:
        line = 'appliance_requests_running{engine="0",model_name="scripted"} 0.0'
        wait_until(lambda: line in http.get("/metrics").text, "nothing runs")
    post(server, "/resume")


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/pause?mode=soon", "mode"),
        ("/pause?clear_cache=maybe", "clear_cache"),
        ("/pause?mode=keep&wait_for_inflight_requests=true", "mode"),
        ("/pause?wait_for_inflight_requests=2", "wait_for_inflight_requests"),
        ("/pause?mode=keep&engine=0", "engine"),
        ("/resume?engine=0", "engine"),
        ("/pause?how=keep", "how"),
        ("/resume?mode=keep", "mode"),
    ],
)
def test_what_is_wrong_is_named(path: str, param: str, server: Server) -> None:
    assert post(server, path, 400)["error"]["param"] == param
    assert get(server, "/is_paused")["is_paused"] is False


def test_a_mode_in_a_body_is_not_taken_for_the_default(server: Server) -> None:
    with server.http() as http:
        told = http.post("/pause", json={"mode": "keep"})
        assert (told.status_code, get(server, "/is_paused")["is_paused"]) == (400, False)
        assert "its parameters are in the query" in told.json()["error"]["message"]
        assert http.post("/resume", json={}).status_code == 200


def test_a_server_that_is_paused_ends_at_once_and_what_waits_fails(tmp_path: Path) -> None:
    with running(tmp_path, SLOW, shutdown_timeout_s=60.0) as server:
        kept = Stream(server).flows()
        post(server, "/pause?mode=keep")
        held = Stream(server, 3)
        wait_until(lambda: get(server, "/is_paused")["is_paused"], "a pause")
        time.sleep(0.3)  # the request is there
        begun = time.monotonic()
        server.terminate()
        assert server.process.wait(20) == 0
        assert time.monotonic() - begun < 10
        kept.thread.join(5)
        held.thread.join(5)
        assert kept.error == "the engine was paused, and shuts down"


@pytest.mark.parametrize("api_servers", [1, 2])
def test_a_server_that_is_replaced_while_it_is_paused_ends_at_once(tmp_path: Path, api_servers: int) -> None:
    with running(tmp_path, SLOW, shutdown_timeout_s=60.0, api_servers=api_servers) as server:
        kept = Stream(server).flows()
        post(server, "/pause?mode=keep")
        begun = time.monotonic()
        (tmp_path / CONTROL_FILE).write_bytes(msgspec.json.encode(RetireCommand("1")))
        server.process.send_signal(signal.SIGHUP)
        assert server.process.wait(20) == 0
        assert time.monotonic() - begun < 10
        kept.thread.join(5)
        assert kept.error == "the engine was paused, and shuts down"


def test_metrics_count_what_waits_for_the_end_of_a_pause(server: Server) -> None:
    post(server, "/pause?mode=keep")
    held = [Stream(server, 3) for _ in range(3)]
    line = 'appliance_requests_waiting{engine="0",model_name="scripted"} '
    with server.http() as http:
        wait_until(lambda: f"{line}3.0" in http.get("/metrics").text, "three wait")
        post(server, "/resume")
        assert [each.end() for each in held] == ["length"] * 3
        assert f"{line}0.0" in http.get("/metrics").text


def test_an_engine_that_is_started_again_is_paused_as_the_one_before(tmp_path: Path) -> None:
    with running(tmp_path, SLOW, **RESTARTS) as server:
        post(server, "/pause")
        killed = server.engine_pid()
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: not get(server, "/readyz")["ready"], "it is gone")
        wait_until(lambda: get(server, "/readyz")["ready"], "it is back", 30)
        assert get(server, "/is_paused") == {"is_paused": True, "mode": "abort"}
        late = Stream(server, 3)
        time.sleep(0.3)
        assert late.ends == []
        post(server, "/resume")
        assert late.end() == "length"
        os.kill(server.engine_pid(), signal.SIGKILL)
        wait_until(lambda: not get(server, "/readyz")["ready"], "it is gone")
        wait_until(lambda: get(server, "/readyz")["ready"], "it is back", 30)
        assert get(server, "/is_paused")["is_paused"] is False


def test_all_replicas_are_paused_and_one_that_comes_back_too(tmp_path: Path) -> None:
    with running(tmp_path, SLOW, replicas=2, data=2, **RESTARTS) as server:
        wait_until(lambda: not get(server, "/readyz")["degraded"], "both are there", 30)
        post(server, "/pause?mode=keep")
        assert get(server, "/is_paused")["engines"] == {"0": "keep", "1": "keep"}
        os.kill(engines(server)[1], signal.SIGKILL)
        wait_until(lambda: get(server, "/readyz")["degraded"], "one is gone")
        wait_until(lambda: not get(server, "/readyz")["degraded"], "both are there", 30)
        assert get(server, "/is_paused")["engines"] == {"0": "keep", "1": "abort"}
        streams = [Stream(server, 3) for _ in range(4)]
        time.sleep(0.3)
        assert [each.ends for each in streams] == [[]] * 4
        post(server, "/resume")
        assert [each.end() for each in streams] == ["length"] * 4
        assert get(server, "/is_paused")["engines"] == {"0": None, "1": None}


def test_several_processes_tell_of_a_pause_that_one_was_asked_for(tmp_path: Path) -> None:
    with running(tmp_path, SLOW, api_servers=2) as server:
        post(server, "/pause?mode=wait")
        for _ in range(8):
            assert get(server, "/readyz")["paused"] is True
            assert get(server, "/is_paused")["mode"] == "wait"
        late = [Stream(server, 3) for _ in range(4)]
        time.sleep(0.3)
        post(server, "/resume")
        assert [each.end() for each in late] == ["length"] * 4
        assert get(server, "/readyz")["paused"] is False


def test_level_0_of_a_sleep_is_a_pause(tmp_path: Path) -> None:
    with running(tmp_path, SLOW, sleep=True) as server:
        stream = Stream(server).flows()
        assert post(server, "/sleep?level=0&mode=keep")["is_sleeping"] is False
        assert get(server, "/is_paused") == {"is_paused": True, "mode": "keep"}
        assert post(server, "/sleep?level=0&mode=soon", 400)["error"]["param"] == "mode"
        assert post(server, "/wake_up?tags=scheduling")["is_sleeping"] is False
        assert get(server, "/is_paused")["is_paused"] is False
        assert stream.end() == "length"


@contextmanager
def served(folder: Path, **changes: Any) -> Iterator[httpx.Client]:
    with running(folder, Script(), **changes) as server, server.http() as client:
        yield client


def test_it_is_served_where_an_engine_is_prepared_for_changes(tmp_path: Path) -> None:
    with served(tmp_path, weight_update_paths=()) as http:
        answer = http.post("/pause")
        assert answer.status_code == 404
        assert "model.weight_update_paths" in answer.json()["error"]["message"]
        assert http.get("/readyz").json()["paused"] is False


def test_a_key_of_some_models_may_not_pause(tmp_path: Path) -> None:
    keys = {"key_hashes": {"some": key_hash("some")}, "key_rules": {"some": {"models": ["alias"]}}}
    with served(tmp_path, **keys) as http:
        headers = {"authorization": "Bearer some"}
        assert [http.post(path, headers=headers).status_code for path in ("/pause", "/resume")] == [403, 403]
