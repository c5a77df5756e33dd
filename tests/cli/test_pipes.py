"""Verbs that change something finish when the reader of their output has gone; others end with their reader."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A verb in whose place a function writes more than a pipe holds, and then leaves a file.
PROGRAM = """
import importlib, pathlib, sys
from appliance.cli.app import main

def work(*args, **kwargs):
    for number in range(20000):
        print("a line of output", number)
        print("a line of progress", number, file=sys.stderr)
    pathlib.Path(sys.argv[2]).write_text("done")
    return 0

verb = sys.argv[1]
importlib.import_module("appliance.cli." + verb).run = work
sys.exit(main([verb, "x.yaml"]))
"""


def run_without_reader(verb: str, marker: Path) -> int:
    """Returns the exit code of a verb whose output goes to a pipe that is closed after the first line."""
    reading, writing = os.pipe()
    command = [sys.executable, "-c", PROGRAM, verb, str(marker)]
    with subprocess.Popen(command, stdout=writing, stderr=writing) as process:
        os.close(writing)
        assert os.read(reading, 8)
        os.close(reading)
        return process.wait(60)


@pytest.mark.parametrize("verb", ["apply", "down", "rollback", "lock"])
def test_what_was_begun_is_finished(verb: str, tmp_path: Path) -> None:
    assert run_without_reader(verb, tmp_path / "marker") == 0
    assert (tmp_path / "marker").read_text() == "done"


@pytest.mark.parametrize("verb", ["logs", "diff"])
def test_what_only_prints_ends_with_its_reader(verb: str, tmp_path: Path) -> None:
    assert run_without_reader(verb, tmp_path / "marker") == 0
    assert not (tmp_path / "marker").exists()
