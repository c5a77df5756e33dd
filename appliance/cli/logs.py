"""`appliance logs`: prints the log of a deployment's server."""

import sys
import time
from pathlib import Path

from appliance.base.errors import ApplianceError, ExitCode
from appliance.cli.arguments.lifecycle import LogsArguments
from appliance.cli.pipes import is_unread
from appliance.deploy.follow import log_tail
from appliance.deploy.naming import find_deployment
from appliance.deploy.process import is_running
from appliance.deploy.state import DeploymentState, Generation

_POLL_S = 0.1


def run(arguments: LogsArguments) -> int:
    """Prints the last lines of the named or newest generation; with --follow also new lines, until the server ends."""
    state = find_deployment(arguments.name)
    wanted = _with_log(state, arguments.generation)
    if wanted is None or not wanted.log_path.is_file():
        which = f"generation {arguments.generation}" if arguments.generation else "it"
        raise ApplianceError(
            f"{state.name}: {which} has no log", hint="in the foreground a server logs to its terminal"
        )
    size = wanted.log_path.stat().st_size
    if tail := log_tail(wanted.log_path, arguments.num_lines):
        print(tail)
    if arguments.follow:
        _follow(wanted.log_path, size, state)
    return ExitCode.OK


def _with_log(state: DeploymentState, generation: int) -> Generation | None:
    """Returns the named generation, else the newest with a log: a reload makes a generation without a server."""
    if generation:
        return state.generation(generation)
    written = [each for each in state.generations() if each.log_path.is_file()]
    return written[-1] if written else None


def _follow(path: Path, offset: int, state: DeploymentState) -> None:
    with path.open("rb") as stream:
        stream.seek(offset)
        while True:
            current = state.current()
            is_alive = current is not None and is_running(current.process)
            data = stream.read()
            sys.stdout.write(data.decode("utf-8", "replace"))
            sys.stdout.flush()
            if not is_alive or is_unread():
                return
            time.sleep(_POLL_S)
