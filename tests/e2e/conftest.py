"""A real model that echoes, a spec that serves it, and the command line as a user calls it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.models.trained import make_echo_model

SPEC = """\
api_version: appliance/v1
kind: Deployment
name: echo
model:
  source: {model}
  served_names: [echo]
  max_model_len: 256
hardware: {{memory: {{kv_cache: 4MiB}}}}
scheduler: {{max_num_seqs: 16}}
endpoints: {{http: {{port: {port}}}}}
"""


@dataclass(frozen=True)
class CommandLine:
    """`appliance` in a process of its own, with a state folder of its own."""

    state: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "APPLIANCE_STATE": str(self.state), "APPLIANCE_CACHE": str(self.state / "cache")}

    def command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", "appliance.cli.app", *map(str, arguments)]

    def run(self, *arguments: object, code: int = 0) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, env=self.environment, timeout=120, check=False
        )
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *arguments: object, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code).stdout)


@pytest.fixture(scope="session")
def echo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("echo-model")
    make_echo_model(folder)
    return folder


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    command_line = CommandLine(tmp_path_factory.mktemp("state"))
    yield command_line
    command_line.run("down", "echo")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory, echo_model: Path) -> Path:
    return write_spec(tmp_path_factory.mktemp("spec"), echo_model)


@pytest.fixture(scope="module")
def deployed(appliance: CommandLine, spec: Path) -> Callable[[], str]:
    """Makes sure that the spec is deployed, and gives its URL."""

    def url() -> str:
        appliance.run("apply", spec)
        found: str = appliance.json("status", "echo")[0]["url"]
        return found

    return url


def write_spec(folder: Path, model: Path, more: str = "") -> Path:
    path = folder / "echo.yaml"
    path.write_text(SPEC.format(model=model, port=free_port()) + more)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
