"""Faults of ranks at random moments under many streams: open requests end within the deadline, the group comes back by
itself, and nothing is left behind.

    python -m tests.e2e.faulted_ranks --rounds 50

prints a line a round and ends with 1 when something did not hold. It serves a random model of its own with two ranks,
or in another `--shape`; `--seed` makes the same moments again. `replicas` has two engines, of which one is faulted
while the other goes on; `data-expert` has two that run their steps together, and fail together, and
`data-expert-tensor` two of two ranks each.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import httpx

from appliance.deploy.process import descendants, identify
from tests.e2e.served import make_random_mixture, make_random_model, serving
from tests.engine.test_rank_group import machine_with
from tests.server.harness import Server, wait_until

NUM_STREAMS = 32
DEADLINE_S = 1.0  # of ranks for each other
SLACK_S = 9.0  # until the last client has read its error, on a machine that does other things as well
BACK_S = 60.0  # until a new group serves
FAULTS = ("stop", "kill", "hang", "parent")
RANK, ENGINE = b"appliance.engine.ranks", b"appliance.engine\0--plan"


@dataclass(frozen=True, slots=True)
class Shape:
    """process: how the command of those that are faulted is told from others. fails_whole: no open request outlives a
    fault. num_cores: for which it is planned; None: those of this machine."""

    overrides: tuple[str, ...]
    process: bytes = RANK
    make_model: Callable[[Path], None] = make_random_model
    fails_whole: bool = True
    num_cores: int | None = None


_ON_TORCH = "hardware.kernels.kernel_set=torch"
_SPREAD = ("parallelism.data=2", "parallelism.expert=true")
# An engine of its own shows by its heart alone that it hangs.
_PLAIN = ("parallelism.data=2", f"restart.heartbeat_timeout={DEADLINE_S:g}s")
SHAPES = {
    "tensor": Shape(("parallelism.tensor=2",)),
    "pipeline": Shape(("parallelism.pipeline=2",)),
    "torch": Shape(("parallelism.tensor=2", _ON_TORCH)),
    "torch-pipeline": Shape(("parallelism.pipeline=2", _ON_TORCH)),
    "data-expert": Shape(_SPREAD, ENGINE, make_random_mixture),
    "data-expert-tensor": Shape((*_SPREAD, "parallelism.tensor=2"), RANK, make_random_mixture, num_cores=4),
    "replicas": Shape(_PLAIN, ENGINE, fails_whole=False),
}
OVERRIDES = (
    f"parallelism.distributed_timeout={DEADLINE_S:g}s",
    "hardware.num_threads=1",
    "restart.backoff=10ms",
    "restart.window=1s",
    "restart.max_restarts=1000",
)
MARK = f"FAULTED_RANKS_OF={os.getpid()}".encode()  # in the environment of all that this run starts
# With it, a thread that gets SIGUSR1 waits where it is, in the middle of an operator, while its process lives.
HANGS = """
import ctypes
libc = ctypes.CDLL(None)
libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
libc.signal.restype = ctypes.c_void_p
libc.signal(10, ctypes.cast(libc.pause, ctypes.c_void_p))
"""


@dataclass(frozen=True, slots=True)
class Round:
    fault: str
    ended: Counter[str]  # how streams ended
    ended_s: float  # from the fault until the last one had
    back_s: float  # until the server was ready again


@contextmanager
def faulted(folder: Path, shape: str) -> Iterator[Server]:
    """A server of several ranks that can be made to hang."""
    for name in ("model", "state", "hangs"):
        (folder / name).mkdir()
    wanted = SHAPES[shape]
    wanted.make_model(folder / "model")
    hardware = None if wanted.num_cores is None else machine_with(wanted.num_cores, folder)
    (folder / "hangs" / "sitecustomize.py").write_text(HANGS)
    paths = [str(folder / "hangs"), *filter(None, [os.environ.get("PYTHONPATH")])]
    name, _, mark = MARK.decode().partition("=")
    with (
        mock.patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(paths), name: mark}),
        serving(folder / "state", folder / "model", *wanted.overrides, *OVERRIDES, hardware=hardware) as server,
    ):
        yield server


def run_round(server: Server, shape: Shape, fault: str, rng: random.Random) -> Round:
    """One fault under streams. Raises AssertionError if something does not hold."""
    old, group = processes(server), ranks(server, shape)
    assert all_ranks(shape) == sorted(group), "nothing is left of what was before"
    ended, ended_s, at = asyncio.run(under_streams(server, shape, fault, rng))
    assert not ended["cut"], f"a stream ended without a word: {dict(ended)}"
    assert ended["error"] > 0, f"no open request had an error: {dict(ended)}"
    assert shape.fails_whole or ended["done"] > 0, f"no stream of the others went on to its end: {dict(ended)}"
    assert ended_s < DEADLINE_S + SLACK_S, f"{fault}: the last open request ended after {ended_s:.1f} s"
    wait_until(
        lambda: is_ready(server) and len(ranks(server, shape)) == len(group), f"{fault}: no group serves again", BACK_S
    )
    back_s = time.monotonic() - at
    assert text(server), "the new group answers"
    wait_until(lambda: len(processes(server)) == len(old), f"{fault}: processes are left: {described(server)}", 20.0)
    left = f"{fault}: ranks outlive an engine: {all_ranks(shape)}"
    wait_until(lambda: all_ranks(shape) == sorted(ranks(server, shape)), left, 20.0)
    return Round(fault, ended, ended_s, back_s)


async def under_streams(
    server: Server, shape: Shape, fault: str, rng: random.Random
) -> tuple[Counter[str], float, float]:
    """Returns how the streams ended, how long after the fault the last did that it ended, and when it was."""
    limits = httpx.Limits(max_connections=NUM_STREAMS)
    started = asyncio.Event()
    async with httpx.AsyncClient(base_url=server.url, timeout=BACK_S, limits=limits) as http:
        streams = [asyncio.ensure_future(stream(http, number, started)) for number in range(NUM_STREAMS)]
        await started.wait()
        await asyncio.sleep(rng.uniform(0.0, 0.3))
        at = time.monotonic()
        strike(server, shape, fault, rng)
        ended = await asyncio.gather(*streams)
    last = max((when for how, when in ended if how != "done"), default=at)
    return Counter(how for how, _ in ended), last - at, at


async def stream(http: httpx.AsyncClient, number: int, started: asyncio.Event) -> tuple[str, float]:
    """Reads an answer that takes longer than the fault lets it; says how it ended, and when."""
    return await read(http, number, started), time.monotonic()


async def read(http: httpx.AsyncClient, number: int, started: asyncio.Event) -> str:
    body = {"model": "random", "prompt": f"{number} once", "max_tokens": 4000, "stream": True, "ignore_eos": True}
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            return "error"
        async for line in answer.aiter_lines():
            started.set()
            if '"error"' in line:
                return "error"
            if line == "data: [DONE]":
                return "done"
    return "cut"


def strike(server: Server, shape: Shape, fault: str, rng: random.Random) -> None:
    rank = rng.choice(sorted(ranks(server, shape)))
    match fault:
        case "stop":
            os.kill(rank, signal.SIGSTOP)
        case "kill":
            os.kill(rank, signal.SIGKILL)
        case "hang":
            os.kill(rank, signal.SIGUSR1)
        case "parent":
            os.kill(server.engine_pid(), signal.SIGKILL)


def processes(server: Server) -> set[int]:
    """The server and all that come of it."""
    top = identify(server.process.pid)
    assert top is not None, "the server runs"
    return {top.pid, *(each.pid for each in descendants(top))}


def all_ranks(shape: Shape) -> list[int]:
    """The ranks of this run, whosever they are: one that is stopped when its engine ends has another parent then."""
    found = [int(each.name) for each in Path("/proc").glob("[0-9]*") if shape.process in command(int(each.name))]
    return sorted(each for each in found if environment(each) & {MARK})


def ranks(server: Server, shape: Shape) -> list[int]:
    return [each for each in processes(server) if shape.process in command(each)]


def described(server: Server) -> list[bytes]:
    return [command(each) for each in processes(server)]


def command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def environment(process: int) -> set[bytes]:
    try:
        return set(Path(f"/proc/{process}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def is_ready(server: Server) -> bool:
    with server.http() as http:
        answer = http.get("/readyz")
    return answer.status_code == 200 and not answer.json().get("degraded", False)


def text(server: Server) -> str:
    with server.http() as http:
        body = {"model": "random", "prompt": "once", "max_tokens": 8, "temperature": 0.0}
        answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["choices"][0]["text"]
    return found


def left_open(server: Server) -> int:
    """The server's open files, sockets among them."""
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def run(
    rounds: int, seed: int, folder: Path, faults: Sequence[str] = FAULTS, *, shape: str = "tensor", say: bool = False
) -> list[Round]:
    """Runs rounds of these faults in turn. Raises AssertionError if something does not hold."""
    rng, found = random.Random(seed), list[Round]()
    with faulted(folder, shape) as server:
        expected, before = text(server), left_open(server)
        for number in range(rounds):
            found.append(run_round(server, SHAPES[shape], faults[number % len(faults)], rng))
            if say:
                print(f"{number + 1:3} {found[-1]}", flush=True)
        assert text(server) == expected, "the last group answers as the first did"
        wait_until(lambda: left_open(server) <= before + 4, f"{left_open(server)} files are open, {before} were")
        last = processes(server)
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        wait_until(lambda: not any(command(each) for each in last), "processes outlive the server", 20.0)
        wait_until(lambda: not all_ranks(SHAPES[shape]), "ranks outlive the server", 20.0)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shape", choices=SHAPES, default="tensor")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = run(arguments.rounds, arguments.seed, Path(folder), shape=arguments.shape, say=True)
        except AssertionError as error:
            print(f"failed: {error}")
            return 1
    slowest = max(found, key=lambda each: each.ended_s)
    print(f"{len(found)} rounds held; at the latest a request ended {slowest.ended_s:.2f} s after a {slowest.fault}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
