"""docs/benchmarks/gpu/run.sh: the whole of it at a tiny size, on torch's CPU device."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "benchmarks" / "gpu" / "run.sh"


def test_all_parts_run_and_leave_their_figures(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "APPLIANCE_CACHE": str(tmp_path)}
    done = subprocess.run([SCRIPT, out, "--dry"], env=environment, capture_output=True, text=True, check=False)
    report = json.loads(out.read_text())
    parts = report["parts"]
    assert done.returncode == 0, {name: part["problem"] for name, part in parts.items()}
    rates = ["speed 8b", "speed fp8", "speed int4", "speed 0.5b"]
    assert report["kernel_set"] == "torch"
    assert list(parts) == ["kernels", "parity", "tokens", "streams", "start", *rates]
    found = {name: part["found"] for name, part in parts.items()}
    assert {name.partition(",")[0] for name in found["kernels"]} >= {"norm", "gate", "dense", "int8", "int4", "fp8"}
    assert all(distance < 1e-5 for distance in found["kernels"].values())
    assert {"experts", "states", "fp8", "fp8 cache"} == set(found["parity"])
    for compared in found["parity"].values():
        assert compared["equal"] == compared["tokens"] > 0
    assert found["streams"]["left"] == 3
    for seconds in (found["start"]["without kept kernels"], found["start"]["with kept kernels"]):
        assert 0 < seconds["ready_s"] < seconds["first_token_s"] < seconds["process_s"]
    rows = [row for name in rates for row in found[name].values() if isinstance(row, dict)]
    assert len(rows) == 3 + 2 + 1 + 3  # decode, prefill and offline work, where a model has them
    assert all(row["tokens_per_s"] > 0 for row in rows)


def test_a_part_that_runs_late_leaves_what_it_found(tmp_path: Path) -> None:
    """It is ended after its first finding."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import device_run as run, json, time\n"
        "def slow(case):\n    yield 'first', 1\n    time.sleep(60)\n"
        "run.PARTS = {'slow': slow}\n"
        "run.note_part('slow', None, run.Path(sys.argv[2]))\n"
    )
    out = tmp_path / "found.json"
    command = [sys.executable, "-c", script, str(SCRIPT.parent), str(out)]
    with subprocess.Popen(command) as process:
        for _ in range(600):
            if out.exists():
                break
            time.sleep(0.05)
        process.kill()
    assert json.loads(out.read_text()) == {"first": 1}


def test_a_part_has_a_limit_of_time(tmp_path: Path) -> None:
    """What the part wrote until then is kept, with the reason why there is no more."""
    slow = tmp_path / "slow.py"
    slow.write_text("import sys, time\nopen(sys.argv[1], 'w').write('{\"first\": 1}')\ntime.sleep(60)\n")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import device_run as run, json\n"
        "run.__file__ = sys.argv[2]\n"
        "print(json.dumps(run.run_part('slow', [], 2.0)))\n"
    )
    command = [sys.executable, "-c", script, str(SCRIPT.parent), str(slow)]
    part = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert part["found"] == {"first": 1}
    assert part["problem"] == "it ran longer than 2 s"


def test_a_part_that_fails_says_why(tmp_path: Path) -> None:
    """The set `cuda` has no device here."""
    out = tmp_path / "out.json"
    command = [sys.executable, SCRIPT.with_name("device_run.py"), out, "--part", "parity"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert not out.exists()
    assert "cuda" in done.stderr
