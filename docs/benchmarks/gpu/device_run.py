"""What only a GPU can show, part by part, each in a process of its own with a limit of time.

    docs/benchmarks/gpu/run.sh OUT.json [--dry] [--model FOLDER_OR_GGUF]...

parity: models with random weights say on the device what the CPU says, over families, formats and caches. tokens: the
same of real models. streams: a server under 64 streams, a third of which goes away. speed: the table of decode, prefill
and offline work. A part that fails or runs late leaves its reason; the others run all the same.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import device_parts

LIMITS_S = {"parity": 120.0, "tokens": 75.0, "streams": 75.0, "speed": 200.0}  # together under eight minutes
EXIT_FAILED = 1


def run_part(name: str, arguments: list[str], limit_s: float) -> dict[str, Any]:
    """Runs a part, and returns what it found, or why it did not end well, with its seconds."""
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
    return {"seconds": round(time.monotonic() - started, 2), "problem": problem, **result}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--dry", action="store_true", help="tiny models on torch's CPU device")
    parser.add_argument("--set", default="cuda", help="the kernel set: cuda or rocm")
    parser.add_argument("--model", action="append", default=[], help="a real model, whose tokens are compared")
    parser.add_argument("--part", choices=LIMITS_S, help="only this part, in this process")
    given = parser.parse_args(arguments)
    case = device_parts.Case.of(dry=given.dry, kernel_set=given.set, models=given.model)
    if given.part is not None:
        given.out.write_text(json.dumps(device_parts.PARTS[given.part](case)))
        return 0
    rest = [*(["--dry"] if given.dry else []), "--set", given.set]
    rest += [word for model in given.model for word in ("--model", model)]
    report: dict[str, Any] = {"dry": given.dry, "kernel_set": case.kernel_set, "parts": {}}
    for name, limit_s in LIMITS_S.items():
        report["parts"][name] = run_part(name, rest, limit_s)
        given.out.write_text(json.dumps(report, indent=1) + "\n")  # what there is, if a later part takes all down
        sys.stdout.write(f"{name}: {report['parts'][name]['problem'] or 'done'}\n")
    return EXIT_FAILED if any(part["problem"] for part in report["parts"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
