"""Every shell line of the guides is run, with a small random model, or is listed here with the reason why not."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import free_port
from tests.e2e.served import make_random_model

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
SPEC = """\
api_version: appliance/v1
kind: Deployment
name: quickstart
model: {source: ./model, served_names: [tiny], max_model_len: 512}
hardware: {memory: {kv_cache: 4MiB}}
scheduler: {max_num_seqs: 8}
endpoints: {auth: {allow_public_without_keys: true}}
"""
REQUEST = '{"custom_id": "%s", "method": "POST", "url": "/v1/completions", "body": {"model": "tiny", "prompt": "a"}}\n'
FILES = {
    "deployment.yaml": SPEC,
    "docs/examples/quickstart.yaml": SPEC.replace("./model", "../../model"),
    "policy.yaml": "fail_on: high\n",
    "requests.jsonl": REQUEST % "a" + REQUEST % "b",
    "vllm.yaml": "model: Qwen/Qwen3-8B\nmax-model-len: 4096\n",
    "config.yaml": "models:\n  small:\n    cmd: llama-server --port ${PORT} -m small.gguf\n",
    "compose.yaml": "services:\n  a: {image: vllm/vllm-openai, command: --model Qwen/Qwen3-8B}\n",
    "Modelfile": "FROM ./small.gguf\nPARAMETER temperature 0.5\n",
}

# What stands in for what a test must not touch.
INSTEAD = {"/etc/systemd/system": "units", "| kubectl apply -f -": "> objects.yaml"}

NOT_RUN = {
    "appliance apply deployment.yaml --watch": "it goes on until Ctrl-C; tests/deploy/test_watch.py",
    "appliance apply --foreground deployment.yaml": "it goes on until SIGTERM; tests/e2e/test_lifecycle.py",
    "appliance logs -f": "it goes on as long as the server",
    "appliance doctor --measure": "it measures for ten seconds",
    "pip install": "it changes the environment of the tests",
    "docker build": "the pipeline builds the image",
    "docker run": "the pipeline runs the image",
    "make quickstart": "it fetches a real model",
    "appliance ranks join": "it waits for a leader; tests/engine/test_ranks_of_machines.py",
    "serve deploy": "Ray is not in this environment; tests/ray runs the file on a cluster",
    "serve status": "see serve deploy",
    "curl -s localhost:8000/collective_rpc": "it calls a class of the reader's; tests/server/test_collective.py",
    "appliance batch deployment.yaml -i requests.jsonl -o answers.jsonl --set batch.backend=ray": "as serve deploy",
    "make wheel": "it builds every processor level; the release pipeline runs it, and make wheel-check",
    "make quickstart-down": "see make quickstart",
    "python3.11 -m venv": "it makes another environment",
    "source .venv/bin/activate": "see python3.11 -m venv",
    "python docs/benchmarks": "a benchmark takes minutes, and stands in the repository",
    "appliance tune": "it searches for minutes; tests/bench",
    "python -m appliance.offline.as_vllm": "it runs the reader's program; tests/offline/test_as_vllm.py",
    "appliance serialize deployment.yaml --output sealed": "its extra may be missing here; tests/e2e/test_loaders.py",
    "lm_eval": "it is not in this environment",
    "appliance bench": "presets take minutes; tests/bench and tests/e2e/test_bench.py",
}

# What a reader has done by then.
BEFORE = {
    "appliance init deployment.yaml": ["mv deployment.yaml kept.yaml"],
    "appliance history quickstart": [
        "appliance apply deployment.yaml",
        "appliance apply deployment.yaml --set model.served_names=[other]",
    ],
    "appliance import": ["rm -rf specs"],
    "curl -s $URL": ["appliance apply deployment.yaml"],
}
AFTER = {"appliance init deployment.yaml --source": ["mv kept.yaml deployment.yaml"]}
MAY_ANSWER_2 = ("appliance diff", "appliance drift", "appliance audit", "appliance lock deployment.yaml --check")


def blocks(guide: Path, language: str) -> Iterator[str]:
    for part in guide.read_text().split(f"```{language}\n")[1:]:
        yield part.split("\n```")[0] + "\n"


def lines(guide: Path) -> Iterator[str]:
    """Yields whole commands: one continues while its quotes are open, or after a backslash."""
    for block in blocks(guide, "sh"):
        held = ""
        for line in block.splitlines():
            held += line + "\n"
            if is_open(held) or held.endswith("\\\n"):
                continue
            if held.strip() and not held.startswith("#"):
                yield held.strip()
            held = ""


def is_open(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


def first(table: dict[str, list[str]], line: str) -> list[str]:
    return next((value for start, value in table.items() if line.startswith(start)), [])


def is_run(line: str) -> bool:
    return not line.startswith(tuple(NOT_RUN))


WITH_LINES = [guide for guide in sorted(GUIDES.glob("*.md")) if any(is_run(line) for line in lines(guide))]


class Shell:
    """A folder with a model and specs, and the commands of this environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port = free_port()
        names = {
            "APPLIANCE_STATE": str(folder / "state"),
            "APPLIANCE_CACHE": str(folder / "cache"),
            "APPLIANCE__ENDPOINTS__HTTP__PORT": str(port),
            "URL": f"http://127.0.0.1:{port}",
            "MODEL": "tiny",
            "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self.environment = {**os.environ, **names}

    def run(self, line: str, codes: tuple[int, ...] = (0,)) -> None:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode in codes, f"{line}\n{done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guides-model")
    make_random_model(folder)
    return folder


@pytest.fixture
def shell(tmp_path: Path, model: Path) -> Iterator[Shell]:
    (tmp_path / "model").symlink_to(model)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "appliance"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m appliance.cli.app "$@"\n')
    command.chmod(0o700)
    made = Shell(tmp_path)
    yield made
    for name in ("quickstart", "coder-prod"):
        made.run(f"appliance down {name}")


@pytest.mark.parametrize("guide", WITH_LINES, ids=lambda guide: guide.stem)
def test_the_lines_of_a_guide_work_one_after_the_other(guide: Path, shell: Shell) -> None:
    for block in blocks(guide, "yaml"):  # a block that names its file in its first line is that file
        head = block.splitlines()[0].removeprefix("# ")
        if block.startswith("# ") and head.endswith(".yaml") and " " not in head:
            (shell.folder / head).write_text(block)
    for line in filter(is_run, lines(guide)):
        if line.startswith("curl") and shutil.which("curl") is None:
            continue
        for before in first(BEFORE, line):
            shell.run(before)
        for old, new in INSTEAD.items():
            line = line.replace(old, new)
        shell.run(line, (0, 2) if line.startswith(MAY_ANSWER_2) else (0,))
        for after in first(AFTER, line):
            shell.run(after)


def test_no_reason_is_left_over() -> None:
    every = [line for guide in GUIDES.glob("*.md") for line in lines(guide)]
    for table in (NOT_RUN, BEFORE, AFTER):
        for start in table:
            assert any(line.startswith(start) for line in every), start


def test_most_lines_are_run() -> None:
    every = [line for guide in GUIDES.glob("*.md") for line in lines(guide)]
    assert len([line for line in every if is_run(line)]) > 40
