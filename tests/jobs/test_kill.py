"""kill -9 at any line, and again, and again: in the end every line was answered exactly once."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.work import echo, read, request, run, write_input

ROOT = Path(__file__).resolve().parents[2]
NUM_LINES = 12


@pytest.mark.parametrize("order", ["input", "completion"])
def test_kill_and_resume(tmp_path: Path, order: str) -> None:
    files = write_input(tmp_path, [request(f"r{i}", delay=0.002 * (i % 3)) for i in range(NUM_LINES)])
    for allowed in (1, 4, 7):  # requests before the kill
        command = [sys.executable, "-m", "tests.jobs.work", str(tmp_path), order]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            for _ in zip(range(allowed), process.stdout, strict=False):
                pass
            process.kill()
    run(files, echo, order=order)
    ids = [line["custom_id"] for line in read(files.output)]
    assert sorted(ids) == sorted(f"r{i}" for i in range(NUM_LINES))
    if order == "input":
        assert ids == [f"r{i}" for i in range(NUM_LINES)]
