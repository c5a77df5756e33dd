"""docs/benchmarks/gpu/run.sh: the whole of it at a tiny size, on torch's CPU device."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "benchmarks" / "gpu" / "run.sh"


def test_all_parts_run_and_leave_their_figures(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "APPLIANCE_CACHE": str(tmp_path)}
    done = subprocess.run([SCRIPT, out, "--dry"], env=environment, capture_output=True, text=True, check=False)
    report = json.loads(out.read_text())
    parts = report["parts"]
    assert done.returncode == 0, {name: part["problem"] for name, part in parts.items()}
    assert (report["kernel_set"], list(parts)) == ("torch", ["parity", "tokens", "streams", "speed"])
    for compared in parts["parity"]["compared"].values():
        assert compared["equal"] == compared["tokens"] > 0
    assert parts["streams"]["left"] == 3
    rows = [*parts["speed"]["8b"], *parts["speed"]["0.5b"]]
    measured = [row for row in rows if "aim" in row]
    assert len(measured) == 5
    assert all(row["tokens_per_s"] > 0 for row in measured)


def test_a_part_that_fails_says_why(tmp_path: Path) -> None:
    """The set `cuda` has no device here."""
    out = tmp_path / "out.json"
    command = [sys.executable, SCRIPT.with_name("device_run.py"), out, "--part", "parity"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert not out.exists()
    assert "cuda" in done.stderr
