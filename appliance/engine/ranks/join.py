"""The process of a rank that joins a leader on another machine: `python -m appliance.engine.ranks.join`.

Exit codes: 0 when the leader ended it, or is gone; 1 when the rank failed; 2 when one refused the other, and a new try
would end alike.
"""

import argparse
import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import msgspec

from appliance import __version__
from appliance.base.errors import ApplianceError
from appliance.checkpoint.sampled_digest import sampled_sha256
from appliance.engine.backend import PlanMismatchError, planned_facts
from appliance.engine.ranks.door import limit_receipts, watch_peer
from appliance.engine.ranks.follower import Link, serve
from appliance.engine.ranks.join_messages import WELCOME, Join, Joined, Refused
from appliance.engine.ranks.messages import ENCODE, Load
from appliance.engine.ranks.proof import prove_to_leader, ranks_token
from appliance.engine.ranks.rank_process import end_with_leader
from appliance.plan.types import EnginePlan

EXIT_REFUSED = 2
_GREETING_S = 15.0
_AGAIN_S = 0.5  # between two tries to reach the leader


class RefusedError(ApplianceError):
    """The leader and this rank do not belong together."""


class JoinRequest(NamedTuple):
    """Which rank of which leader this is. model: where this machine has the checkpoint; None: where the leader has it.
    engine_sha256: as in Join. wait_s: for the leader to listen, and to want this rank."""

    address: tuple[str, int]
    rank: int
    model: Path | None = None
    engine_sha256: str = ""
    wait_s: float = 600.0


def run_rank(request: JoinRequest, token: str) -> int:
    """Joins, loads and runs until the leader ends it. Returns the exit code of `serve`. The process ends with the
    connection. Raises RefusedError, ProofError, and OSError if the leader cannot be reached."""
    end, first = _joined(request, token)
    watch_peer(end, first.plan.parallel.distributed_timeout_s)
    _end_with_connection(end)
    return serve(Link(Connection(end.dup().detach())), first)


def _joined(request: JoinRequest, token: str) -> tuple[socket.socket, Load]:
    """Tries until the leader takes this rank in."""
    deadline = time.monotonic() + request.wait_s
    while True:
        is_late = time.monotonic() > deadline
        try:
            end = socket.create_connection(request.address, timeout=_GREETING_S)
        except OSError:
            if is_late:
                raise
            time.sleep(_AGAIN_S)
            continue
        end.settimeout(None)
        welcome = _greet(end, request, token)
        if isinstance(welcome, Load):
            return end, welcome
        end.close()
        if not welcome.is_for_now or is_late:
            raise RefusedError(f"the leader refused rank {request.rank}: {welcome.reason}", hint=welcome.hint)
        time.sleep(_AGAIN_S)


def _greet(end: socket.socket, request: JoinRequest, token: str) -> Load | Refused:
    """Returns what this rank loads, or why the leader does not want it. Raises RefusedError if it has other weights."""
    limit_receipts(end, _GREETING_S)
    with Connection(end.dup().detach()) as connection:
        prove_to_leader(connection, token)
        join = Join(request.rank, __version__, socket.gethostname(), request.engine_sha256)
        connection.send_bytes(ENCODE(join))
        welcome: Load | Refused = WELCOME.decode(connection.recv_bytes())
        if isinstance(welcome, Refused):
            return welcome
        try:
            first = msgspec.structs.replace(welcome, plan=_here(welcome.plan, request.model), host=end.getsockname()[0])
            _check_weights(first)
        except (ApplianceError, OSError) as error:
            connection.send_bytes(ENCODE(Refused(str(error))))
            raise RefusedError(str(error), hint=getattr(error, "hint", None)) from error
        connection.send_bytes(ENCODE(Joined()))
    limit_receipts(end, 0.0)
    return first


def _here(plan: EnginePlan, model: Path | None) -> EnginePlan:
    if model is None:
        return plan
    return msgspec.structs.replace(plan, model=msgspec.structs.replace(plan.model, path=str(model)))


def _check_weights(first: Load) -> None:
    """Raises PlanMismatchError if this machine's checkpoint is not the leader's, and OSError if it has none."""
    path = Path(first.plan.model.path)
    planned_facts(first.plan)
    if first.weights_sha256 is not None and sampled_sha256(path) != first.weights_sha256:
        raise PlanMismatchError(
            f"the weights at {path} are not those of the leader",
            hint="copy the leader's checkpoint, or name it: --model",
        )


def _end_with_connection(end: socket.socket) -> None:
    """Ends this process when the leader is gone, even while a step waits for it."""

    def watch() -> None:
        poll = select.poll()
        poll.register(end, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        poll.poll()
        os._exit(0)

    threading.Thread(target=watch, name="leader", daemon=True).start()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="appliance.engine.ranks.join", description="Runs one rank of a leader.")
    parser.add_argument("address", help="HOST:PORT of the leader")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--engine", default="", help="the engine hash of the plan that it is for")
    parser.add_argument("--parent-fd", type=int, help="read end of a pipe; the rank ends at once when it closes")
    parser.add_argument("--wait", type=float, default=600.0, metavar="SECONDS", help="for the leader")
    options = parser.parse_args(arguments)
    faulthandler.enable()
    if options.parent_fd is not None:
        end_with_leader(options.parent_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; who started this process decides
    host, _, port = options.address.rpartition(":")
    request = JoinRequest((host, int(port)), options.rank, options.model, options.engine, options.wait)
    try:
        return run_rank(request, ranks_token())
    except (ApplianceError, OSError, EOFError) as error:
        message = error.report() if isinstance(error, ApplianceError) else f"error: no leader at {host}:{port}: {error}"
        sys.stderr.write(f"{message}\n")
        return EXIT_REFUSED if isinstance(error, ApplianceError) else 1


if __name__ == "__main__":
    sys.exit(main())
