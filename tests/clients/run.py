"""Serves a spec, runs the clients of others against it, and takes it down. `make clients` makes the environments."""

import argparse
import hashlib
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
KEY, ONE_AT_A_TIME = "clients", "one-at-a-time"
NOTHING_CHOSEN = 5  # what pytest answers when -k leaves no test
APIS = "endpoints.apis=[openai, responses, batches, anthropic]"
# By environment of Python: of the clients of models that generate, named after the openai in it, as newer and older
# clients answer to the same suites; and of those of models that pool, which are run where they are asked for.
POOLING = "pooling"
SUITES = {
    POOLING: ("embeddings", "cohere", "mteb"),
    "openai-3": ("openai", "anthropic", "langchain", "pydantic_ai", "guide"),
    "openai-2": ("openai", "anthropic", "instructor", "litellm", "guide"),
}


@contextmanager
def served(spec: str) -> Iterator[str]:
    """The URL of the spec's deployment, on a free port and with a state folder of its own."""
    with tempfile.TemporaryDirectory(prefix="clients-") as state:
        environment = {**os.environ, "APPLIANCE_STATE": state}

        def appliance(*arguments: str) -> str:
            command = [sys.executable, "-m", "appliance.cli.app", *arguments]
            return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout

        settings = (APIS, f"endpoints.auth.keys={json.dumps(keys())}", f"endpoints.http.port={free_port()}")
        changes = [part for setting in settings for part in ("--set", setting)]
        applied = json.loads(appliance("apply", spec, "--json", *changes))
        try:
            yield applied["url"]
        finally:
            appliance("down", applied["name"])


def keys() -> list[dict[str, object]]:
    """One key for everything, and one whose second request at once is refused for the time."""
    rules = {KEY: {}, ONE_AT_A_TIME: {"max_concurrency": 1}}
    return [
        {"name": name, "hash": f"sha256:{hashlib.sha256(name.encode()).hexdigest()}", **rule}
        for name, rule in rules.items()
    ]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def python_suites(name: str, environment: dict[str, str], more: Sequence[str]) -> int:
    folder = HERE / "python"
    command = [f"{ENVIRONMENTS}/{name}/bin/python", "-m", "pytest", "-c", f"{folder}/pytest.ini", f"--rootdir={folder}"]
    files = [f"{folder}/test_{suite}.py" for suite in SUITES[name]]
    code = subprocess.run([*command, *more, *files], env=environment, check=False).returncode
    return 0 if code == NOTHING_CHOSEN and more else code


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
    parser.add_argument("--url", help="a server that runs already, without keys, in place of the spec's")
    parser.add_argument(
        "--only", choices=(*SUITES, "node"), action="append", help="of the environments; may be repeated"
    )
    arguments, more = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is taken down then, too

    def suites(url: str, **keys: str) -> int:
        # litellm fetches a table of prices when it is imported, unless it is told not to.
        environment = {**os.environ, "APPLIANCE_URL": url, **keys, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        chosen = arguments.only or [*(name for name in SUITES if name != POOLING), "node"]
        failed = [python_suites(name, environment, more) for name in SUITES if name in chosen]
        if "node" in chosen:
            failed.append(node_suites(environment))
        return max(failed)

    if arguments.url:
        return suites(arguments.url)
    with served(arguments.spec) as url:
        return suites(url, APPLIANCE_KEY=KEY, APPLIANCE_KEY_ONE_AT_A_TIME=ONE_AT_A_TIME)


if __name__ == "__main__":
    sys.exit(main())
