"""A skip that is not on the list fails where tests are strict."""

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
CASES = """
import pytest

def test_known():
    pytest.skip("helm is not here")

def test_unknown():
    pytest.skip("the moon is full")
"""


@pytest.mark.parametrize(("strict", "outcome"), [("", "2 skipped"), ("1", "1 failed, 1 skipped")])
def test_unknown_skips_fail(tmp_path: Path, strict: str, outcome: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_cases.py").write_text(CASES)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, env={"APPLIANCE_TEST_STRICT": strict}, capture_output=True, text=True, check=False)
    assert outcome in done.stdout, done.stdout
    assert ("the moon is full" in done.stdout) == bool(strict)
