"""Engine death, hangs, disconnects, overload and shutdown, over real processes and sockets."""

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from appliance.engine.scripted import Script
from tests.server.harness import Server, running, says, wait_until

SLOW = {"step_seconds": 0.02}


def chat(message: str = "unknown", **options: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": message}], **options}


def restarting(folder: Path, script: Script, **changes: Any) -> Any:
    """A server whose engine is started again at once."""
    return running(
        folder, script, max_restarts=3, backoff_s=0.1, restart="on-failure", server_load_tracking=True, **changes
    )


def is_idle(server: Server) -> bool:
    with server.http() as http:
        metrics = http.get("/metrics").text
    figures = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    label = '{engine="0",model_name="scripted"}'
    return float(figures[f"appliance_requests_running{label}"]) == 0 and http_load(server) == 0


def http_load(server: Server) -> int:
    with server.http() as http:
        load: int = http.get("/load").json()["server_load"]
        return load


def test_killed_engine_fails_requests_and_comes_back(tmp_path: Path) -> None:
    with restarting(tmp_path, Script(replies=[says("greet", "hello")], **SLOW)) as server:
        outcomes: list[Any] = []

        def stream() -> None:
            with server.openai() as client:
                try:
                    for chunk in client.chat.completions.create(**chat(max_tokens=400), stream=True):
                        outcomes.append(chunk)
                except openai.APIError as error:
                    outcomes.append((error, time.monotonic()))

        def whole() -> None:
            with server.openai() as client:
                try:
                    client.chat.completions.create(**chat(max_tokens=400))
                except openai.APIError as error:
                    outcomes.append((error, time.monotonic()))

        threads = [threading.Thread(target=stream), threading.Thread(target=whole)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(outcomes) > 3, "the stream flows")
        wait_until(lambda: http_load(server) == 2, "both are open")
        os.kill(server.engine_pid(), signal.SIGKILL)
        killed = time.monotonic()
        with server.http() as http:
            red = http.get("/readyz")
            while red.status_code == 200:
                red = http.get("/readyz")
            assert "SIGKILL" in red.json()["reasons"][0]
            assert http.get("/health").status_code == 503
            assert http.get("/livez").status_code == 200
        for thread in threads:
            thread.join(10)
        failures = [outcome for outcome in outcomes if isinstance(outcome, tuple)]
        assert len(failures) == 2
        assert all(moment - killed < 2.0 for _, moment in failures)
        with server.http() as http:
            wait_until(lambda: http.get("/readyz").status_code == 200, "the engine is back")
            assert http.get("/readyz").json()["restarts"] == 1
            assert (
                http.post("/v1/chat/completions", json=chat("greet")).json()["choices"][0]["message"]["content"]
                == "hello"
            )


def test_engine_that_keeps_dying_is_given_up(tmp_path: Path) -> None:
    with running(tmp_path, Script()) as server, server.http() as http:  # its plan never restarts
        os.kill(server.engine_pid(), signal.SIGKILL)
        reason = server.wait_for("failed")["reason"]
        assert "SIGKILL" in reason
        ready = http.get("/readyz").json()
        assert ready["state"] == "failed"
        answer = http.post("/v1/chat/completions", json=chat())
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "unavailable"
        assert answer.headers["retry-after"]


def test_crash_in_a_step_is_told(tmp_path: Path) -> None:
    with restarting(tmp_path, Script(crash_at_step=2)) as server, server.http() as http:
        answer = http.post("/v1/chat/completions", json=chat())
        assert answer.status_code in (500, 503)
        assert "Traceback" not in answer.text


def test_hung_engine_is_killed(tmp_path: Path) -> None:
    changes = {"heartbeat_timeout_s": 1.0}
    with restarting(tmp_path, Script(hang_at_step=2), **changes) as server, server.http() as http:
        answer = http.post("/v1/chat/completions", json=chat())
        assert answer.status_code == 503
        assert "hangs in step 2" in answer.json()["error"]["message"]
        wait_until(lambda: http.get("/readyz").status_code == 200, "the engine is back")


def test_slow_steps_are_no_hang(tmp_path: Path) -> None:
    script = Script(step_seconds=0.3)
    with restarting(tmp_path, script, heartbeat_timeout_s=1.0) as server, server.http() as http:
        assert http.post("/v1/chat/completions", json=chat(max_tokens=6)).status_code == 200
        assert http.get("/readyz").json()["restarts"] == 0


def test_engine_that_cannot_start_ends_the_server(tmp_path: Path) -> None:
    with running(tmp_path, Script(), wait=False) as server:
        script = tmp_path / "script.json"
        script.write_text('{"no_such": 1}')
        server.process.wait(20)
        assert server.process.returncode == 1
        failed = [event for event in server.events() if event["event"] == "failed"]
        assert failed
        assert "Traceback" not in server.log.read_text()


def test_start_is_reported_by_phase(tmp_path: Path) -> None:
    with running(tmp_path, Script(load_seconds=3.0), wait=False) as server:
        server.wait_for("listening")
        server.wait_for("phase")
        with server.http() as http:
            body = http.get("/readyz").json()
            assert body["ready"] is False
            assert body["reasons"] == ["the engine is starting"]
            refused = http.post("/v1/chat/completions", json=chat())
            assert refused.status_code == 503
            server.wait_for("ready")
            assert http.get("/readyz").json()["ready"] is True
        names = [event["event"] for event in server.events()]
        assert names[:2] == ["process", "listening"]
        assert any(event.get("ended") for event in server.events() if event["event"] == "phase")


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_ends_the_request(tmp_path: Path, stream: bool) -> None:
    with running(tmp_path, Script(**SLOW), server_load_tracking=True) as server:
        host, port = server.url.removeprefix("http://").split(":")
        body = httpx.Request("POST", server.url, json=chat(max_tokens=450, stream=stream)).content
        headers = ["POST /v1/chat/completions HTTP/1.1", "host: x", "content-type: application/json"]
        head = "\r\n".join([*headers, f"content-length: {len(body)}", "", ""])
        connections = [socket.create_connection((host, int(port))) for _ in range(12)]  # 8 run, 4 wait
        for connection in connections:
            connection.sendall(head.encode() + body)
        wait_until(lambda: http_load(server) == 12, "all are open")
        for connection in connections:
            connection.close()
        wait_until(lambda: is_idle(server), "the engine is idle")
        with server.http() as http:
            assert (
                'requests_finished_total{engine="0",finished_reason="abort",model_name="scripted"} 12.0'
                in http.get("/metrics").text
            )


def test_overload_is_refused_with_retry_after(tmp_path: Path) -> None:
    with running(tmp_path, Script(**SLOW), max_num_seqs=2, max_waiting=1, server_load_tracking=True) as server:
        results: list[int] = []

        def ask() -> None:
            with server.http() as http:
                results.append(http.post("/v1/chat/completions", json=chat(max_tokens=150)).status_code)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: http_load(server) == 3, "two run and one waits")
        with server.http() as http:
            answer = http.post("/v1/chat/completions", json=chat())
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["type"] == "rate_limit_error"
        for thread in threads:
            thread.join(20)
        assert results == [200, 200, 200]


def test_sigterm_drains(tmp_path: Path) -> None:
    with running(tmp_path, Script(**SLOW), server_load_tracking=True) as server:
        texts: list[str] = []

        def stream() -> None:
            with server.openai() as client:
                for chunk in client.chat.completions.create(**chat(max_tokens=60), stream=True):
                    texts.append(chunk.choices[0].delta.content or "")

        thread = threading.Thread(target=stream)
        thread.start()
        wait_until(lambda: len(texts) > 2, "the stream flows")
        with server.http() as http:
            http.get("/livez")
            server.terminate()
            wait_until(lambda: http.get("/readyz").status_code == 503, "readiness is red")
            assert http.get("/readyz").json()["state"] == "draining"
            refused = http.post("/v1/chat/completions", json=chat())
            assert refused.status_code == 503
            assert refused.headers["connection"] == "close"
        thread.join(20)
        assert sum(map(len, texts)) >= 50  # the stream was not cut
        assert server.process.wait(10) == 0
        assert server.events()[-1]["event"] == "stopped"


def test_drain_ends_at_its_limit(tmp_path: Path) -> None:
    with running(tmp_path, Script(step_seconds=0.1), shutdown_timeout_s=0.5) as server:
        errors: list[Exception] = []

        def stream() -> None:
            with server.openai() as client:
                try:
                    list(client.chat.completions.create(**chat(max_tokens=450), stream=True))
                except openai.APIError as error:
                    errors.append(error)

        thread = threading.Thread(target=stream)
        thread.start()
        wait_until(lambda: not is_idle_fast(server), "it is open")
        server.terminate()
        thread.join(10)
        assert "shutting down" in str(errors[0])
        assert server.process.wait(10) == 0


def is_idle_fast(server: Server) -> bool:
    with server.http() as http:
        return 'appliance_requests_running{engine="0",model_name="scripted"} 0.0' in http.get("/metrics").text


def test_no_process_or_socket_is_left(tmp_path: Path) -> None:
    with running(tmp_path, Script()) as server:
        engine, sockets = server.engine_pid(), server.sockets()
        server.terminate()
        assert server.process.wait(10) == 0
    assert not Path(f"/proc/{engine}").exists()
    assert not sockets.exists()


def test_engine_ends_with_a_killed_server(tmp_path: Path) -> None:
    with running(tmp_path, Script()) as server:
        engine, sockets = server.engine_pid(), server.sockets()
        assert sockets.is_dir()
        server.process.kill()
        server.process.wait()
        wait_until(lambda: not _runs(engine), "the engine noticed")
        assert not sockets.exists()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_port_in_use_is_said(tmp_path: Path, server: Server) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    with running(tmp_path, Script(), wait=False, port=port) as second:
        assert second.process.wait(20) == 1
        assert "cannot listen" in second.log.read_text()
