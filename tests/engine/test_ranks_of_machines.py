"""Ranks of several machines, which are processes of this one here: who is let in, equal tokens, and faults."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from appliance import __version__
from appliance.base.errors import ApplianceError, SpecError
from appliance.engine.inproc import InprocEngine
from appliance.engine.ranks.join_messages import WELCOME, Join, Refused
from appliance.engine.ranks.messages import ENCODE
from appliance.engine.ranks.proof import ProofError, check_rank, prove_to_leader, ranks_token
from appliance.plan.prepare import prepare
from tests.engine.test_rank_group import SPEC, TORCH, answers, engine_of, run_until_it_fails, wait_until_gone
from tests.models.tiny import make_tiny
from tests.server.harness import wait_until

TOKEN = "a token of the test"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("machines")
    make_tiny("llama", folder / "model")
    (folder / "spec.yaml").write_text(SPEC.format(source=folder / "model"))
    return folder


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPLIANCE_RANKS_TOKEN", TOKEN)


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def join(address: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts rank 1 as another machine does."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str, token: str = TOKEN, rank: str = "1") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "appliance.engine.ranks.join", address, "--rank", rank, *options]
        environment = {**os.environ, "APPLIANCE_RANKS_TOKEN": token}
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def of_two_machines(address: str, timeout: str = "20s") -> tuple[str, ...]:
    host, port = address.split(":")
    nodes = (f"parallelism.master_addr={host}", f"parallelism.master_port={port}", "parallelism.nnodes=2")
    waits = (f"parallelism.distributed_timeout={timeout}", "parallelism.join_timeout=60s")
    return TORCH, "parallelism.tensor=2", *nodes, *waits


def other_weights(model: Path, target: Path) -> Path:
    """A copy with one other number, at the start of which no header tells."""
    target.mkdir()
    for file in model.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    (file,) = target.glob("*.safetensors")
    tensors = load_file(file)
    name = max(tensors, key=lambda each: tensors[each].size)
    tensors[name] = tensors[name] + np.ones_like(tensors[name])
    save_file(tensors, file, metadata={"format": "pt"})
    return target


def greeted(address: str, version: str) -> object:
    """What the leader says to a rank of another version."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port))) as end, Connection(end.dup().detach()) as connection:
        prove_to_leader(connection, TOKEN)
        connection.send_bytes(ENCODE(Join(1, version, "here")))
        return WELCOME.decode(connection.recv_bytes())


def listens(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port))).close()
    except OSError:
        return False
    return True


def test_only_the_right_rank_joins_and_a_lost_one_is_named(
    folder: Path, address: str, join: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    spec, found = folder / "spec.yaml", list[InprocEngine]()
    with engine_of(spec, TORCH) as one:
        expected = answers(one, 1)
    starting = threading.Thread(target=lambda: found.append(engine_of(spec, *of_two_machines(address))))
    starting.start()
    wait_until(lambda: listens(address), "the leader listens", timeout_s=30.0)
    refused = {
        "another token": join(token="some other token of someone"),
        "not those of the leader": join("--model", str(other_weights(folder / "model", tmp_path / "other"))),
        "for another plan": join("--engine", "0" * 64),
        "there is no rank 7 beside the leader": join(rank="7"),
        "there is no rank 0 beside the leader": join(rank="0"),
    }
    for reason, process in refused.items():
        _, said = process.communicate(timeout=60)
        assert (process.returncode, reason in said) == (2, True), said
    answer = greeted(address, "0.0")
    assert isinstance(answer, Refused)
    assert answer.reason == f"it is appliance 0.0, and the leader {__version__}"
    rank = join()
    starting.join(60)
    with found[0] as engine:
        assert answers(engine, 1) == expected
        os.kill(rank.pid, signal.SIGKILL)
        assert run_until_it_fails(engine) == "rank 1 ended: its connection ended"


def test_a_rank_that_stops_is_late_by_name_and_ends_with_its_leader(
    folder: Path, address: str, join: Callable[..., subprocess.Popen[str]]
) -> None:
    rank = join()  # it tries until the leader listens
    with engine_of(folder / "spec.yaml", *of_two_machines(address, "1s")) as engine:
        answers(engine, 1)
        os.kill(rank.pid, signal.SIGSTOP)
        assert run_until_it_fails(engine) == "rank 1 did not come within 1 s"
    os.kill(rank.pid, signal.SIGCONT)
    assert rank.wait(10) == 0


def test_a_rank_ends_with_a_killed_leader(
    folder: Path, address: str, join: Callable[..., subprocess.Popen[str]]
) -> None:
    code = f"""
import time
from pathlib import Path
from tests.engine.test_rank_group import engine_of
engine = engine_of(Path({str(folder / "spec.yaml")!r}), *{of_two_machines(address)!r})
print("up", flush=True)
time.sleep(60)
"""
    rank = join()
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == "up\n"
        os.kill(leader.pid, signal.SIGKILL)
        wait_until_gone(rank.pid)


def test_a_rank_that_does_not_join_fails_the_start(folder: Path, address: str) -> None:
    overrides = (*of_two_machines(address), "parallelism.join_timeout=100ms")
    with pytest.raises(ApplianceError, match=r"rank 1 did not join within 0\.1 s"):
        engine_of(folder / "spec.yaml", *overrides)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ((), "share the memory of one machine"),
        ((TORCH, "parallelism.nnodes=3"), "2 ranks cannot be shared evenly by 3 machines"),
        ((TORCH, "parallelism.master_addr=null"), "need the address of the first one"),
        ((TORCH, "parallelism.master_addr=0.0.0.0"), "stands for every address"),
    ],
)
def test_what_cannot_be_on_several_machines_is_refused(
    overrides: tuple[str, ...], problem: str, folder: Path, address: str
) -> None:
    with pytest.raises(SpecError) as raised:
        prepare(str(folder / "spec.yaml"), (*of_two_machines(address)[1:], *overrides))
    assert any(problem in each.message for each in raised.value.diagnostics)


def test_an_address_that_is_taken_is_named(folder: Path, address: str) -> None:
    host, port = address.split(":")
    with (
        socket.create_server((host, int(port))),
        pytest.raises(ApplianceError, match=f"ranks cannot join at {address}: Address already in use"),
    ):
        engine_of(folder / "spec.yaml", *of_two_machines(address))


@pytest.mark.parametrize("token", ["", "short"])
def test_a_token_is_needed(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPLIANCE_RANKS_TOKEN", token)
    with pytest.raises(ApplianceError, match=r"APPLIANCE_RANKS_TOKEN (is not set|has 5 characters)"):
        ranks_token()


def test_a_leader_without_the_token_is_found_out() -> None:
    ours, theirs = socket.socketpair()
    leader, rank = Connection(ours.detach()), Connection(theirs.detach())

    def lead() -> None:
        with pytest.raises(ProofError, match="another token"):
            check_rank(leader, "a token of someone else")

    other = threading.Thread(target=lead)
    other.start()
    with pytest.raises(ProofError, match="another token"):
        prove_to_leader(rank, TOKEN)
    other.join()
