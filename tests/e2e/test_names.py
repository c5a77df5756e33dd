"""A deployment is meant by its name or its file alike, and a start outlives the reader of its output."""

import subprocess
from pathlib import Path

from tests.e2e.conftest import CommandLine

WORK = ("--with", "num_prompts=2", "--with", "input_len=4", "--with", "output_len=2", "--with", "num_warmups=0")


def first_line(appliance: CommandLine, line: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    script = f'"$@" {line} | head -1; echo "code ${{PIPESTATUS[0]}}"'
    command = ["bash", "-c", script, "bash", *appliance.command(*arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=appliance.environment, timeout=120, check=True)


def test_a_start_outlives_the_reader_of_its_output(appliance: CommandLine, spec: Path) -> None:
    appliance.run("down", "echo")
    done = first_line(appliance, "2>&1", "apply", spec, "--set", "scheduler.max_num_seqs=8")
    assert done.stdout.splitlines()[-1] == "code 0"
    [status] = appliance.json("status", "echo")
    assert status["readiness"] == "ready"


def test_a_log_that_is_followed_ends_with_its_reader(appliance: CommandLine, spec: Path) -> None:
    appliance.run("apply", spec, "--set", "scheduler.max_num_seqs=8")
    assert first_line(appliance, "", "logs", "echo", "-f").stdout.splitlines()[-1] == "code 0"


def test_names_stand_for_files_and_files_for_names(appliance: CommandLine, spec: Path, tmp_path: Path) -> None:
    appliance.run("apply", spec, "--set", "scheduler.max_num_seqs=8")
    for meant in ("echo", spec):
        appliance.run("validate", meant)
        appliance.run("status", meant)
        appliance.run("history", meant)
        appliance.run("bench", "serve", meant, *WORK)
        assert appliance.run("chat", meant, "to be said").stdout == "to be said\n"
        assert appliance.run("complete", meant, "-q", "said", "--max-tokens", "2").stdout.strip()
    assert appliance.run("chat", "to be said").stdout == "to be said\n"
    assert appliance.json("plan", "echo")["scheduler"]["max_num_seqs"] == 8, "as it was applied"
    appliance.run("diff", "echo")
    appliance.run("diff", spec, code=2)
    appliance.run("lock", "echo", "-o", tmp_path / "echo.lock")
    assert "no change" in appliance.run("apply", "echo").stdout


def test_what_went_down_is_applied_again_by_its_name(appliance: CommandLine, spec: Path) -> None:
    appliance.run("apply", spec, "--set", "scheduler.max_num_seqs=8")
    appliance.run("down", "echo")
    appliance.run("apply", "echo")
    assert appliance.json("plan", "echo")["scheduler"]["max_num_seqs"] == 8


def test_a_name_that_is_not_there_is_told_with_those_that_are(appliance: CommandLine, spec: Path) -> None:
    appliance.run("apply", spec)
    for verb in ("apply", "plan", "validate", "diff"):
        refused = appliance.run(verb, "ecco", code=2)
        assert "nothing of that name was applied here" in refused.stderr
        assert "hint: name a YAML file, or a deployment: echo" in refused.stderr
    assert "did you mean echo?" in appliance.run("chat", "ecco", code=2).stderr
