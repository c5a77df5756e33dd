"""Applies that are killed, and what must be so after the next one."""

import multiprocessing
import os
import random
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Literal

from appliance.deploy.execute import DesiredState, stop
from appliance.deploy.lock import changing, owner_of
from appliance.deploy.observe import observe
from appliance.deploy.process import ProcessId, descendants, identify, is_running
from appliance.deploy.reconcile import Readiness, reconcile
from appliance.deploy.state import DeploymentState
from tests.deploy.applying import Heard, apply, ask
from tests.server.harness import wait_until

Victim = Literal["apply", "old server", "old engine", "new server", "new engine", "old worker", "new worker"]
VICTIMS: tuple[Victim, ...] = ("apply", "old server", "old engine", "new server", "new engine")
VICTIMS_OF_MANY: tuple[Victim, ...] = (*VICTIMS, "old worker", "new worker")  # where there are several API processes
FILES = {"spec.yaml", "spec.json", "applied.json", "plan.json", "result.json"}


class KilledAtPhase(Heard):
    """Ends its own process, as SIGKILL does, when a phase or an action begins for the nth time."""

    def __init__(self, moment: str) -> None:
        super().__init__()
        self._moment = moment

    def phase(self, name: str) -> None:
        if name == self._moment:
            os.kill(os.getpid(), signal.SIGKILL)


def in_a_process(
    state: DeploymentState, what: DesiredState, *, has_room: bool = True, heard: Heard | None = None
) -> ForkProcess:
    """An apply as a command makes it, with the lock, in a process that may be killed."""

    def work() -> None:
        os.setsid()
        with changing(state.lock_path, "appliance apply", 60.0):
            apply(state, what, heard, has_room=has_room)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


@dataclass(frozen=True, slots=True)
class Family:
    """The processes of a deployment, as its record names them."""

    servers: tuple[ProcessId, ...]

    @classmethod
    def of(cls, state: DeploymentState) -> "Family":
        current = state.current()
        return cls((current.process, *current.leftover) if current is not None else ())

    def victims(self, kind: Victim, before: "Family") -> list[ProcessId]:
        servers = [each for each in self.servers if (each in before.servers) == kind.startswith("old")]
        if kind.endswith("server"):
            return servers
        below = [each for server in servers for each in descendants(server)]
        return [each for each in below if is_engine(each) == kind.endswith("engine")][:1]


def kill_at(seconds: float, applying: ForkProcess, state: DeploymentState, victim: Victim, before: Family) -> bool:
    """Returns whether there was a process to kill."""
    time.sleep(seconds)  # the random moment is what is tested
    if victim == "apply":
        applying.kill()
        applying.join()
        return applying.exitcode == -signal.SIGKILL
    found = Family.of(state).victims(victim, before)
    for process in found:
        if is_running(process):
            os.kill(process.pid, signal.SIGKILL)
    applying.join(60.0)
    assert applying.exitcode is not None, "the apply hangs"
    wait_until(lambda: has_noticed(state), "a server does not see that its engine is gone")
    return bool(found)


def has_noticed(state: DeploymentState) -> bool:
    """A server needs a moment to hear of its engine's end, and says until then that it is ready."""
    seen = observe(state)
    if seen.readiness is not Readiness.READY or seen.current is None:
        return True
    return any(map(is_engine, descendants(seen.current.process)))


def is_engine(process: ProcessId) -> bool:
    try:
        return b"appliance.engine" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def processes_of(state: DeploymentState) -> set[int]:
    """Servers and engines whose command line names the deployment's folder."""
    found = {int(each) for each in os.listdir("/proc") if each.isdigit() and _names(int(each), str(state.folder))}
    return found - {os.getpid()}


def _names(pid: int, folder: str) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return folder.encode() in command and identify(pid) is not None


def check_declared(state: DeploymentState, what: DesiredState) -> None:
    """What runs is what was asked for, and nothing else is there."""
    seen = observe(state)
    assert seen.current is not None
    assert (seen.readiness, seen.is_unsure, seen.current.leftover) == (Readiness.READY, False, ())
    assert [action.verb for action in reconcile(seen, what.plan)] == ["keep"]
    assert ask(seen.current.url) == "hello world"
    api_servers, server = what.plan.serving.api_servers, seen.current.process
    num_below = 1 + (api_servers if api_servers > 1 else 0)  # the engine, and API processes
    wait_until(lambda: len(descendants(server)) == num_below, "a killed API process does not come back")
    family = {server.pid, *(each.pid for each in descendants(server))}
    wait_until(lambda: processes_of(state) <= family, f"orphans: {processes_of(state) - family}")
    assert owner_of(state.lock_path) is None
    check_files(state)


def check_files(state: DeploymentState) -> None:
    assert not [each.name for each in state.folder.iterdir() if each.name.startswith(".")]
    assert {each.name for each in (state.folder / "generations").iterdir()} == {
        each.folder.name for each in state.generations()
    }
    for generation in state.generations():
        assert {each.name for each in generation.folder.iterdir()} >= FILES, generation.number
        generation.plan()
        assert generation.result() is not None


def check_gone(state: DeploymentState, port: int) -> None:
    """After everything was ended: no process, and a free port."""
    seen = observe(state)
    assert seen.current is not None
    stop(state, seen.current, seen.plan)
    wait_until(lambda: not processes_of(state), "processes are left")
    socket.create_server(("127.0.0.1", port)).close()


def choose(random_: random.Random, what: Sequence[DesiredState], before: DesiredState) -> DesiredState:
    return random_.choice([each for each in what if each is not before])
