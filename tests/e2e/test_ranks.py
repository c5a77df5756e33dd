"""A server of two ranks: it answers as one of one rank does, and comes back by itself when a rank is gone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import faulted_ranks
from tests.e2e.conftest import free_port
from tests.e2e.served import make_random_model, serving
from tests.server.harness import Server, wait_until


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_random_model(folder)
    return folder


def text(server: Server) -> str:
    with server.http() as http:
        body = {"model": "random", "prompt": "once", "max_tokens": 24, "temperature": 0.8, "seed": 5}
        answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["choices"][0]["text"]
    return found


def status_of(server: Server, path: str) -> int:
    with server.http() as http:
        return int(http.get(path).status_code)


def ranks() -> list[int]:
    """The ranks of all engines on this machine that are this test's: descendants of this process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"appliance.engine.ranks" in command and _is_ours(int(folder.name)):
            found.append(int(folder.name))
    return found


def _is_ours(process: int) -> bool:
    while process > 1:
        if process == os.getpid():
            return True
        try:
            stat = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            return False
        process = int(stat.rsplit(") ", 1)[1].split()[1])
    return False


def test_a_server_of_two_ranks_comes_back(model: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with serving(tmp_path / "one", model) as server:
        expected = text(server)
    overrides = ("parallelism.tensor=2", "hardware.num_threads=1", "restart.backoff=100ms")
    with serving(tmp_path / "two", model, *overrides) as server:
        assert text(server) == expected
        (rank,) = ranks()
        os.kill(rank, signal.SIGKILL)  # while nothing runs
        wait_until(lambda: ranks() not in ([], [rank]), "the group starts again", timeout_s=60.0)
        wait_until(lambda: status_of(server, "/readyz") == 200, "it is ready again", timeout_s=60.0)
        assert text(server) == expected
    wait_until(lambda: ranks() == [], "no rank is left behind", timeout_s=10.0)


def test_faults_at_random_moments_cost_open_requests_alone(tmp_path: Path) -> None:
    """`python -m tests.e2e.faulted_ranks` in small."""
    rounds = faulted_ranks.run(2, 1, tmp_path, ("hang", "parent"))
    assert [each.fault for each in rounds] == ["hang", "parent"]
    assert rounds[0].ended_s > 0.9 * faulted_ranks.DEADLINE_S  # it hung, and did not end


def test_a_rank_of_another_machine_joins_again(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPLIANCE_RANKS_TOKEN", "a token of the test")
    port = free_port()
    linked = ("hardware.kernels.kernel_set=torch", "hardware.num_threads=1", "restart.backoff=100ms")
    nodes = ("parallelism.nnodes=2", "parallelism.master_addr=127.0.0.1", f"parallelism.master_port={port}")
    command = [sys.executable, "-m", "appliance.cli.app", "ranks", "join", f"127.0.0.1:{port}", "--rank", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            with serving(tmp_path, model, "parallelism.tensor=2", *linked, *nodes) as server:
                expected = text(server)
                (rank,) = ranks()
                os.kill(rank, signal.SIGKILL)
                wait_until(lambda: ranks() not in ([], [rank]), "the rank starts again", timeout_s=60.0)
                wait_until(lambda: status_of(server, "/readyz") == 200, "it is ready again", timeout_s=60.0)
                assert text(server) == expected
                other.terminate()
                said, _ = other.communicate(timeout=10)
                assert other.returncode == 1  # a rank has failed
                assert said.splitlines()[1] == "rank 1 has ended with exit code -9"
                assert ranks() == []
        finally:
            other.terminate()
