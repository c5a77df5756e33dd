"""What only a GPU can show, part by part, each in a process of its own with a limit of time.

    docs/benchmarks/gpu/run.sh OUT.json [--dry] [--set rocm] [--model FOLDER_OR_GGUF]... [--only PART]...

kernels: single kernels say what torch says. parity: models with random weights say on the device what the CPU says,
over families, formats and caches. tokens: the same of real models. streams: a server under 64 streams, a third of which
goes away. start: seconds to the first token, with kept kernels and without. speed: decode, prefill and offline work of
8B in bf16, FP8 and int4, and of 0.5B. A part that fails or runs late leaves its reason and what it had found; the
others run all the same.
"""

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import device_kernels
import device_parity
import device_server
import device_speed
from device_case import Case, Findings

from appliance.base.errors import ApplianceError

PARTS: Final[Mapping[str, Callable[[Case], Findings]]] = {
    "kernels": device_kernels.kernels, "parity": device_parity.parity, "tokens": device_parity.tokens,
    "streams": device_server.streams, "start": device_speed.start,
    **{name: functools.partial(device_speed.speed, name=name) for name in device_speed.SPEEDS},
}  # fmt: skip
LIMITS_S: Final = {
    "kernels": 40.0, "parity": 75.0, "tokens": 50.0, "streams": 50.0, "start": 45.0,
    "speed 8b": 95.0, "speed fp8": 45.0, "speed int4": 40.0, "speed 0.5b": 35.0,
}  # fmt: skip  # together under eight minutes
EXIT_FAILED = 1


def run_part(name: str, arguments: list[str], limit_s: float) -> dict[str, Any]:
    """Runs a part, and returns what it found, and why it did not end well, if so, with its seconds."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found.json")
        command = [sys.executable, str(Path(__file__)), str(found), "--part", name, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
            problem = "" if done.returncode == 0 else done.stderr.strip()[-2000:] or f"exit code {done.returncode}"
        except subprocess.TimeoutExpired:
            problem = f"it ran longer than {limit_s:.0f} s"
        result = json.loads(found.read_text()) if found.exists() else {}
    return {"seconds": round(time.monotonic() - started, 2), "problem": problem, "found": result}


def try_part(name: str, case: Case) -> dict[str, Any]:
    """Does the same in this process, without a limit of time: a dry run loads torch once."""
    started, problem = time.monotonic(), ""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found.json")
        try:
            note_part(name, case, found)
        except (RuntimeError, ApplianceError) as error:
            problem = str(error)
        result = json.loads(found.read_text()) if found.exists() else {}
    return {"seconds": round(time.monotonic() - started, 2), "problem": problem, "found": result}


def note_part(name: str, case: Case, out: Path) -> None:
    """Runs a part in this process, and writes what it found whenever that is more."""
    found: dict[str, Any] = {}
    for key, value in PARTS[name](case):
        found[key] = value
        whole = out.with_suffix(".new")
        whole.write_text(json.dumps(found))
        whole.replace(out)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--dry", action="store_true", help="tiny models on torch's CPU device")
    parser.add_argument("--set", default="cuda", help="the kernel set: cuda or rocm")
    parser.add_argument("--model", action="append", default=[], help="a real model, whose tokens are compared")
    parser.add_argument("--only", action="append", choices=PARTS, default=[], help="not all parts, but this one")
    parser.add_argument("--part", choices=PARTS, help="only this part, in this process, without a limit of time")
    given = parser.parse_args(arguments)
    case = Case.of(dry=given.dry, kernel_set=given.set, models=given.model)
    if given.part is not None:
        note_part(given.part, case, given.out)
        return 0
    rest = ["--set", given.set]
    rest += [word for model in given.model for word in ("--model", model)]
    report: dict[str, Any] = {"dry": given.dry, "kernel_set": case.kernel_set, "parts": {}}
    for name in given.only or PARTS:
        report["parts"][name] = try_part(name, case) if given.dry else run_part(name, rest, LIMITS_S[name])
        given.out.write_text(json.dumps(report, indent=1) + "\n")  # what there is, if a later part takes all down
        sys.stdout.write(f"{name}: {report['parts'][name]['problem'] or 'done'}\n")
    return EXIT_FAILED if any(part["problem"] for part in report["parts"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
