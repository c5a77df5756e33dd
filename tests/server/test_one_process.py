"""`endpoints.http.disable_frontend_multiprocessing`: the engine is a thread of the server's process."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from appliance.engine.scripted import Script
from tests.server.harness import Server, running, says, wait_until, write_plan

GREETS = Script(replies=[says("greet", "hello world")])
SLOW = Script(step_seconds=0.02)
DEBUGGED = """\
import sys
from appliance.engine.scripted import ScriptedExecutable
from appliance.server.__main__ import main

run = ScriptedExecutable.run

def stopped(self, inputs):
    if self.num_steps == 2:
        breakpoint()
    return run(self, inputs)

ScriptedExecutable.run = stopped
sys.exit(main(sys.argv[1:]))
"""


def chat(message: str = "unknown", **options: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": message}], **options}


def said(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def children(server: Server) -> list[str]:
    pids = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    below = [pid for each in pids for pid in each.read_text().split()]
    return [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in below]


def test_it_serves_without_a_process_of_the_engine(tmp_path: Path) -> None:
    with running(tmp_path, GREETS, has_engine_inside=True) as server, server.http() as http:
        assert said(http.post("/v1/chat/completions", json=chat("greet"))) == "hello world"
        assert [each for each in children(server) if "appliance.engine --plan" in each] == []
        assert http.get("/readyz?deep=1").json()["deep"]["result"] == "ok"
        assert 'appliance_requests_running{engine="0",model_name="scripted"} 0.0' in http.get("/metrics").text
        assert {"interpreter", "runner"} <= {each["name"] for each in server.events() if each["event"] == "phase"}
        server.terminate()
        assert server.process.wait(10) == 0
    assert "Traceback" not in server.log.read_text()


def test_what_is_open_ends_before_the_process(tmp_path: Path) -> None:
    with running(tmp_path, SLOW, has_engine_inside=True, shutdown_timeout_s=60.0) as server:
        texts: list[str] = []

        def stream() -> None:
            with server.openai() as client:
                for chunk in client.chat.completions.create(**chat(max_tokens=60), stream=True):
                    texts.append(chunk.choices[0].delta.content or "")

        thread = threading.Thread(target=stream)
        thread.start()
        wait_until(lambda: len(texts) > 3, "the stream flows")
        server.terminate()
        thread.join(60)
        assert server.process.wait(10) == 0
        assert len(texts) >= 60


def test_an_engine_that_dies_ends_the_server(tmp_path: Path) -> None:
    with running(tmp_path, Script(crash_at_step=2), has_engine_inside=True) as server, server.http() as http:
        answer = http.post("/v1/chat/completions", json=chat())
        assert answer.status_code in (500, 503), answer.text
        assert "died in step 2" in answer.json()["error"]["message"]
        assert server.process.wait(10) == 1
        assert "died in step 2" in [each for each in server.events() if each["event"] == "failed"][-1]["reason"]


def test_one_that_hangs_ends_the_server_where_a_time_is_given(tmp_path: Path) -> None:
    script = Script(hang_at_step=2)
    with running(tmp_path, script, has_engine_inside=True, heartbeat_timeout_s=1.0) as server, server.http() as http:
        answer = http.post("/v1/chat/completions", json=chat())
        assert (answer.status_code, "hangs in step 2" in answer.text) == (503, True)
        assert server.process.wait(15) == 1


def test_one_that_cannot_start_ends_the_server(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, Script(), has_engine_inside=True)
    (tmp_path / "script.json").write_text('{"no_such": 1}')
    server = Server(plan, tmp_path)
    try:
        assert server.process.wait(30) == 1
        assert [each for each in server.events() if each["event"] == "failed"]
    finally:
        server.close()


def test_it_ends_while_it_loads(tmp_path: Path) -> None:
    with running(tmp_path, Script(load_seconds=30.0), wait=False, has_engine_inside=True) as server:
        server.wait_for("phase")
        with server.http() as http:
            assert http.get("/readyz").json()["reasons"] == ["the engine is starting"]
        server.terminate()
        assert server.process.wait(15) == 0


def test_a_breakpoint_holds_the_engine_and_not_the_server(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, GREETS, has_engine_inside=True, heartbeat_timeout_s=86400.0)
    command = [sys.executable, "-c", DEBUGGED, "--plan", str(plan), "--state", str(tmp_path)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
    server = Server.__new__(Server)
    server._status, server.log, server.process = tmp_path / "status.jsonl", tmp_path / "log", process
    try:
        server.wait_for("ready")
        answers: list[str] = []

        def ask() -> None:
            with server.http() as http:
                answers.append(said(http.post("/v1/chat/completions", json=chat("greet"))))

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: "(Pdb)" in server.log.read_text(), "someone stands at the breakpoint")
        time.sleep(1.0)
        with server.http() as http:
            assert http.get("/readyz").json()["ready"] is True
        assert answers == []
        assert process.stdin is not None
        process.stdin.write(b"p 'steps', self.num_steps\ncontinue\n")
        process.stdin.close()
        thread.join(60)
        assert answers == ["hello world"]
        assert "('steps', 2)" in server.log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        server.close()
