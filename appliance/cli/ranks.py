"""`appliance ranks join`: a process for each rank that this machine has, started again while the leader is."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from appliance.base.errors import ApplianceError, ExitCode
from appliance.engine.ranks.proof import ranks_token

_LOOK_EVERY_S = 0.2
_AGAIN_S = 1.0  # after a rank that ended
_REFUSED = 2  # the exit code of a rank that is not wanted (engine.ranks.join)


def ranks_of_node(ranks: Sequence[int], node_rank: int | None, ranks_per_node: int) -> Sequence[int]:
    """Returns the ranks of a machine: those given, or those of the machine of a number, of which the leader's is 0.
    Raises ApplianceError where both or none are given, and for the leader's."""
    if bool(ranks) == (node_rank is not None):
        raise ApplianceError("name the ranks of this machine, or its number", hint="--rank N, or --node-rank N")
    if node_rank is None:
        return ranks
    if node_rank < 1 or ranks_per_node < 1:
        raise ApplianceError("machine 0 has the server; others have numbers from 1 on, and at least one rank")
    return range(node_rank * ranks_per_node, (node_rank + 1) * ranks_per_node)


def run_join(address: str, ranks: Sequence[int], model: Path | None, engine: str, *, once: bool) -> int:
    """Runs ranks until it is told to end. Raises ApplianceError if there is no token, or the address is none."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isdecimal() and len(port) < 6 and 0 < int(port) < 2**16):
        raise ApplianceError(f"{address!r} is no HOST:PORT", hint="write the spec's master_addr and master_port")
    ranks_token()
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    options = [*([] if model is None else ["--model", str(model)]), *(["--engine", engine] if engine else [])]
    with _Ranks([address, *options]) as processes:
        for rank in sorted(set(ranks)):
            processes.start(rank)
        while processes.running and not told.wait(_LOOK_EVERY_S):
            for rank, code in processes.ended():
                if not once and code != _REFUSED and not told.wait(_AGAIN_S):
                    processes.start(rank)
        return ExitCode.INTERNAL if processes.has_failed else ExitCode.OK


class _Ranks:
    """The processes of ranks, which end with this one."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._alive, self._held = os.pipe()
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.has_failed = False

    def __enter__(self) -> "_Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()
        os.close(self._held)
        os.close(self._alive)

    def start(self, rank: int) -> None:
        print(f"rank {rank} joins {self._arguments[0]}", flush=True)
        own = ["--rank", str(rank), "--parent-fd", str(self._alive)]
        command = [sys.executable, "-m", "appliance.engine.ranks.join", *self._arguments, *own]
        self.running[rank] = subprocess.Popen(command, pass_fds=(self._alive,))

    def ended(self) -> list[tuple[int, int]]:
        """Returns the ranks that have ended since the last call, with their exit codes."""
        codes = [(rank, process.poll()) for rank, process in self.running.items()]
        found = [(rank, code) for rank, code in codes if code is not None]
        for rank, code in found:
            del self.running[rank]
            self.has_failed |= code != 0
            print(f"rank {rank} has ended{'' if code == 0 else f' with exit code {code}'}", flush=True)
        return found
