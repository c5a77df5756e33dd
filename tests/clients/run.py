"""Serves a spec, runs the clients of others against it, and takes it down. `make clients` makes the environments."""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[1] / "build" / "clients"
SETTINGS = (
    "endpoints.apis=[openai, responses, batches, anthropic]",
    "decoding.disable_additional_properties=true",  # small models fill every object that is left open
)


@contextmanager
def served(spec: str) -> Iterator[str]:
    """The URL of the spec's deployment, on a free port and with a state folder of its own."""
    with tempfile.TemporaryDirectory(prefix="clients-") as state:
        environment = {**os.environ, "APPLIANCE_STATE": state}

        def appliance(*arguments: str) -> str:
            command = [sys.executable, "-m", "appliance.cli.app", *arguments]
            return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout

        settings = (f"endpoints.http.port={free_port()}", *SETTINGS)
        changes = [part for setting in settings for part in ("--set", setting)]
        applied = json.loads(appliance("apply", spec, "--json", *changes))
        try:
            yield applied["url"]
        finally:
            appliance("down", applied["name"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def python_suites(environment: dict[str, str], more: Sequence[str]) -> int:
    folder = HERE / "python"
    command = [f"{ENVIRONMENTS}/venv/bin/python", "-m", "pytest", "-c", f"{folder}/pytest.ini", f"--rootdir={folder}"]
    return subprocess.run([*command, *more, str(folder)], env=environment, check=False).returncode


def node_suites(environment: dict[str, str]) -> int:
    """Run where their packages are, for a module of Node looks for packages above itself only."""
    folder = ENVIRONMENTS / "node"
    for source in (HERE / "node").glob("*.mjs"):
        shutil.copy(source, folder)
    files = sorted(path.name for path in folder.glob("*.test.mjs"))
    command = ["node", "--test", "--test-concurrency=1", "--test-timeout=120000", *files]
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec", help="what to serve; its model must answer, call tools and write JSON")
    parser.add_argument("--url", help="a server that runs already, in place of the spec's")
    parser.add_argument("--only", choices=("python", "node"))
    arguments, more = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is taken down then, too

    def suites(url: str) -> int:
        environment = {**os.environ, "APPLIANCE_URL": url}
        failed = python_suites(environment, more) if arguments.only != "node" else 0
        return failed | (node_suites(environment) if arguments.only != "python" else 0)

    if arguments.url:
        return suites(arguments.url)
    with served(arguments.spec) as url:
        return suites(url)


if __name__ == "__main__":
    sys.exit(main())
