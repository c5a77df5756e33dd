"""`python -m appliance.server --plan plan.json --state DIR`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from appliance.base.sockets import socket_folder
from appliance.service.engine_spawn import SpawnedEngine, engine_command, first_socket, spawn_engine, start_of


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="appliance.server", description="Serves one planned engine over HTTP.")
    parser.add_argument("--plan", required=True, type=Path, help="an EnginePlan as JSON")
    parser.add_argument("--state", type=Path, help="an existing folder for status.jsonl")
    parser.add_argument("--store", type=Path, help="a folder for responses, files and batches; else a temporary one")
    parser.add_argument("--listener", type=int, metavar="FD", help="a listening socket, taken over from another server")
    parser.add_argument("--gate", action="store_true", help="keep the plan's targets in a few requests first, or end")
    options = parser.parse_args(arguments)
    start = start_of(options.plan)
    has_several = start.api_servers > 1
    if start.is_inside:
        code = _serve(options, None, has_several=has_several)
        from appliance.service.engine_thread import exit_with_engine  # noqa: PLC0415 - with its engine alone

        return exit_with_engine(code)
    with socket_folder() as sockets:
        plan, engine = options.plan.resolve(), None
        if start.is_alone:
            engine = spawn_engine(engine_command(), plan, first_socket(sockets), replica=start.first_replica)
        return _serve(options, engine, has_several=has_several)


def _serve(options: argparse.Namespace, engine: SpawnedEngine | None, *, has_several: bool) -> int:
    """Imports while the engine loads; both take about as long. engine: None where it is a thread of this process, or
    starts with others. has_several: API processes, which this one keeps; then it imports no HTTP."""
    from appliance.service.status_file import STATUS_FILE, StatusFile  # noqa: PLC0415 - after the engine's start

    status = StatusFile(options.state / STATUS_FILE if options.state else None)
    status.write("process", pid=os.getpid())
    if has_several:
        from appliance.server.workers.keeper import run_keeper as run  # noqa: PLC0415 - after the engine's start
    else:
        from appliance.server.process.run import run_server as run  # noqa: PLC0415 - after the engine's start
    return run(
        options.plan,
        status,
        store_folder=options.store,
        listener=options.listener,
        engine=engine,
        is_gated=options.gate,
    )


if __name__ == "__main__":
    sys.exit(main())
