"""apply, status, logs, down: a YAML file, a real model, real processes."""

import re
import socket
import subprocess
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.conftest import CommandLine
from tests.server.harness import wait_until


def total_and_sum(text: str) -> tuple[float, float]:
    rows = dict(re.findall(r"^  (\w[\w ]*?) +(\d+\.\d+) s$", text, re.MULTILINE))
    total = float(rows.pop("total"))
    return total, sum(map(float, rows.values()))


def test_a_spec_becomes_a_server_and_goes_away(appliance: CommandLine, spec: Path) -> None:
    appliance.run("down", "echo")
    applied = appliance.run("apply", spec)
    total, phases = total_and_sum(applied.stdout)
    assert abs(total - phases) < 0.1  # rounding of the rows
    assert "load weights" in applied.stdout
    assert "curl -N http://127.0.0.1:" in applied.stdout
    assert "start: nothing runs" in applied.stderr

    [status] = appliance.json("status")
    assert (status["name"], status["readiness"], status["model"]) == ("echo", "ready", "echo")
    assert status["memory_bytes"] > 1 << 20

    with openai.OpenAI(base_url=f"{status['url']}/v1", api_key="none", _strict_response_validation=True) as client:
        chunks = client.chat.completions.create(
            model="echo", messages=[{"role": "user", "content": "Hello, world!"}], stream=True, temperature=0
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello, world!"
    assert appliance.run("chat", spec, "-q", "to be said").stdout == "to be said\n"
    appliance.run("plan", spec, "--verify")

    again = appliance.run("apply", spec)
    assert "no change" in again.stdout
    assert appliance.json("status")[0]["pid"] == status["pid"]

    changed = appliance.json("apply", spec, "--set", "scheduler.max_num_seqs=8")
    assert changed["changed"]
    assert changed["actions"][0]["cause"] == "changed scheduler.max_num_seqs: 16 -> 8"
    assert appliance.json("status")[0]["generation"] > status["generation"]
    assert "state=ready" in appliance.run("logs").stdout

    assert "stopped" in appliance.run("down").stdout
    assert "nothing runs" in appliance.run("down", "echo").stdout
    with pytest.raises(httpx.ConnectError):
        httpx.get(status["url"])


def test_a_port_that_is_taken_is_exit_4(appliance: CommandLine, spec: Path) -> None:
    appliance.run("down", "echo")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = appliance.run("apply", spec, "--set", f"endpoints.http.port={port}", code=4)
    assert f"cannot listen on 127.0.0.1:{port}" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_in_the_foreground_the_command_is_the_server(appliance: CommandLine, spec: Path) -> None:
    appliance.run("down", "echo")
    command = appliance.command("apply", "--foreground", spec)
    with subprocess.Popen(command, env=appliance.environment, stderr=subprocess.PIPE, text=True) as server:
        wait_until(lambda: status_is_ready(appliance), "not ready", timeout_s=60.0)
        [found] = appliance.json("status", "echo")
        assert found["pid"] == server.pid
        refused = appliance.run("apply", "--foreground", spec, code=4)
        assert f"runs in the background already (pid {server.pid})" in refused.stderr
        server.terminate()
        assert server.wait(timeout=20) == 0
        assert server.stderr is not None
        assert "in the foreground" in server.stderr.read()


def status_is_ready(appliance: CommandLine) -> bool:
    done = subprocess.run(
        appliance.command("status", "echo"), capture_output=True, env=appliance.environment, check=False
    )
    return done.returncode == 0


def test_two_applies_at_once_end_with_one_server(appliance: CommandLine, spec: Path) -> None:
    appliance.run("down", "echo")
    both = [
        subprocess.Popen(
            appliance.command("apply", spec, "--json"), env=appliance.environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted('"changed": true' in answer for answer in answers) == [False, True]
    assert appliance.json("status", "echo")[0]["readiness"] == "ready"
