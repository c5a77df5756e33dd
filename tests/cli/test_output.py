"""Standard streams that are closed, and output that cannot be written."""

import subprocess
import sys
from pathlib import Path

import pytest


def appliance(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "appliance.cli.app", *arguments]


@pytest.mark.parametrize("closed", ["", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("arguments", "code"), [(["explain", "cache"], 0), (["explain", "no.such"], 2)])
def test_streams_that_are_closed_change_no_exit_code(closed: str, arguments: list[str], code: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *appliance(*arguments)], capture_output=True, check=False
    )
    assert done.returncode == code
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is not here")
def test_output_that_cannot_be_written_is_a_failure() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(appliance("schema"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
