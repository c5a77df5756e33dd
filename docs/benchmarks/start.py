"""From `appliance apply` to the first token, and the memory beyond weights: python docs/benchmarks/start.py SPEC.

Each round applies the spec, streams one chat answer of a few tokens, asks for the status and takes the deployment
down. Run it twice: the first round of a fresh cache packs the weights, later ones map them. State goes to a folder of
its own; the cache is the user's (APPLIANCE_CACHE).
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

APPLIANCE = [sys.executable, "-m", "appliance.cli.app"]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def run(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run([*APPLIANCE, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def first_token_s(url: str) -> float:
    """Seconds from the connection to the first chunk with content."""
    parts = urlsplit(url)
    started = time.perf_counter()
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    messages = [{"role": "user", "content": "Count to three."}]
    body = json.dumps({"messages": messages, "model": model_of(connection), "stream": True, "max_tokens": 8})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            break
    seconds = time.perf_counter() - started
    connection.close()
    return seconds


def model_of(connection: http.client.HTTPConnection) -> str:
    connection.request("GET", "/v1/models")
    return str(json.loads(connection.getresponse().read())["data"][0]["id"])


def processor_seconds(pid: int) -> float:
    """User and system time of a process so far (proc(5), fields 14 and 15 of stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def measure(spec: Path, environment: dict[str, str]) -> dict[str, float | str]:
    started = time.perf_counter()
    applied = json.loads(run(environment, "apply", str(spec), "--json"))
    ready = time.perf_counter() - started
    server, engine = applied["pid"], children_of(applied["pid"])
    used = {"server, CPU": processor_seconds(server), "engine, CPU": sum(map(processor_seconds, engine))}
    token = first_token_s(applied["url"])
    [status] = json.loads(run(environment, "status", "--json"))
    run(environment, "down", applied["name"])
    weights = status["weights"]
    return {
        "apply": ready,
        "first token": ready + token,
        "weights": weights["seconds"],
        **used,
        "beyond weights, MiB": (status["memory_bytes"] - weights["size_bytes"]) / 2**20,
        "origin": weights["origin"],
        **{f"  {name}": seconds for name, seconds in applied["phases"].items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "APPLIANCE_STATE": state}
        rounds = [measure(options.spec, environment) for _ in range(options.rounds)]
    say("origin of weights: " + ", ".join(str(each["origin"]) for each in rounds))
    say(f"{'':20} {'least':>8} {'median':>8} {'most':>8}")
    for name in rounds[-1]:
        values = [float(each.get(name, 0.0)) for each in rounds if name != "origin"]
        if values:
            say(f"{name:20} {min(values):8.2f} {statistics.median(values):8.2f} {max(values):8.2f}")


if __name__ == "__main__":
    main()
