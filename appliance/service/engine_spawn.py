"""Starting an engine's process. Imports next to nothing, so that an engine loads while its server still imports."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from appliance.base.environ import with_changes
from appliance.base.sockets import endpoint_of, socket_folder


@dataclass(frozen=True, slots=True)
class SpawnedEngine:
    """A process that will listen on `socket`. It ends by itself when we die: it holds the read end of our `pipe`."""

    process: "subprocess.Popen[bytes]"
    pipe: int
    socket: Path

    @property
    def endpoint(self) -> str:
        return endpoint_of(self.socket)


@dataclass(frozen=True, slots=True)
class StartOfPlan:
    """How a server begins with a plan. Of what cannot be read as one it begins as with most, and then says why."""

    is_inside: bool = False  # the engine is a thread of its server
    is_alone: bool = True  # the first engine shares nothing with others, and can start before anything else is known
    api_servers: int = 1
    first_replica: int = 0  # the number of the first engine


def start_of(plan: Path) -> StartOfPlan:
    """It reads JSON alone: the types of a plan take as long to import as an engine's first modules."""
    try:
        found = json.loads(plan.read_bytes())
        serving, parallel = found["serving"], found["parallel"]
        is_alone = not (parallel["expert"] and parallel["data"] > 1)
        return StartOfPlan(
            bool(serving.get("has_engine_inside")),
            is_alone,
            int(serving.get("api_servers", 1)),
            int(parallel.get("first_replica", 0)),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return StartOfPlan()


def engine_command() -> tuple[str, ...]:
    return (sys.executable, "-m", "appliance.engine")


def spawn_engine(
    command: Sequence[str],
    plan: Path,
    socket: Path,
    *,
    replica: int = 0,
    lockstep: Sequence[int] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> SpawnedEngine:
    """Starts the engine of a replica. lockstep: descriptors of what it shares with others (StepGroup). environment:
    variables that it has besides ours. Raises OSError."""
    shared = ("--lockstep", ":".join(map(str, lockstep))) if lockstep else ()
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(
            [
                *(*command, "--plan", str(plan), "--socket", endpoint_of(socket), "--parent-fd", str(read_end)),
                *("--replica", str(replica), *shared),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=(read_end, *lockstep),
            start_new_session=True,  # a terminal's Ctrl-C reaches the server alone, which then drains
            env=with_changes(PYTHONUNBUFFERED="1", **environment),
        )
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    return SpawnedEngine(process, write_end, socket)


def sockets_beside(engine: SpawnedEngine | None) -> AbstractContextManager[Path]:
    """The folder of its socket. The process that started the engine removes it; without an engine it is our own."""
    return nullcontext(engine.socket.parent) if engine is not None else socket_folder()


def first_socket(folder: Path) -> Path:
    """Returns the path of the socket of a server's first engine; later engines have other paths."""
    return folder / "engine-1"
