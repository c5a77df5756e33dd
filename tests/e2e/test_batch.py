"""`appliance batch` over a real model, killed and run again."""

import json
import subprocess
from pathlib import Path

from tests.e2e.conftest import CommandLine
from tests.server.harness import wait_until

NUM_LINES = 24


def request(number: int) -> str:
    body = {"model": "echo", "messages": [{"role": "user", "content": f"line {number}"}], "temperature": 0}
    return json.dumps({"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})


def has_a_line(path: Path) -> bool:
    return path.exists() and b"\n" in path.read_bytes()


def test_a_killed_batch_goes_on(appliance: CommandLine, spec: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [*(request(n) for n in range(NUM_LINES)), '{"custom_id": "bad"}']
    source.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")  # with a byte order mark, as Windows writes it
    command = appliance.command("batch", spec, "-i", source, "-o", target, "--max-concurrency", 2)
    with subprocess.Popen(command, env=appliance.environment, stderr=subprocess.DEVNULL) as killed:
        wait_until(lambda: has_a_line(target) or killed.poll() is not None, "nothing was written", timeout_s=60.0)
        killed.kill()
    written = target.read_bytes().count(b"\n")
    summary = appliance.json("batch", spec, "-i", source, "-o", target)
    assert (summary["requests"], summary["failed"], summary["resumed"]) == (NUM_LINES + 1, 1, written)
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == [*(f"r{n}" for n in range(NUM_LINES)), "bad"]
    for number, answer in enumerate(answers[:-1]):
        assert answer["response"]["body"]["choices"][0]["message"]["content"] == f"line {number}"
    assert answers[-1]["error"]["code"] == "invalid_method"


def num_engines(process: int) -> int:
    """The engines that are children of a process."""
    children = Path(f"/proc/{process}/task").glob("*/children")
    commands = (Path(f"/proc/{child}/cmdline") for each in children for child in each.read_text().split())
    return sum(b"appliance.engine" in command.read_bytes().split(b"\0") for command in commands if command.exists())


def test_replicas_share_a_batch(appliance: CommandLine, spec: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(request(number) for number in range(8)) + "\n")
    replicas = ("--set", "parallelism.data=2", "--set", "hardware.num_threads=1")
    command = appliance.command("batch", spec, "-i", source, "-o", target, *replicas)
    with subprocess.Popen(command, env=appliance.environment, stderr=subprocess.DEVNULL) as batch:
        wait_until(lambda: num_engines(batch.pid) == 2, "two engines were not started", timeout_s=60.0)
        assert batch.wait(60) == 0
    answers = {each["custom_id"]: each for each in map(json.loads, target.read_text().splitlines())}
    for number in range(8):
        content = answers[f"r{number}"]["response"]["body"]["choices"][0]["message"]["content"]
        assert content == f"line {number}"
