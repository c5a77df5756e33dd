"""`python -m appliance.server --plan plan.json --state DIR`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.base.sockets import socket_folder
from appliance.service.engine_spawn import (
    SpawnedEngine,
    engine_command,
    first_socket,
    is_inside,
    spawn_engine,
    starts_alone,
)

if TYPE_CHECKING:
    from appliance.service.status_file import StatusFile


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="appliance.server", description="Serves one planned engine over HTTP.")
    parser.add_argument("--plan", required=True, type=Path, help="an EnginePlan as JSON")
    parser.add_argument("--state", type=Path, help="an existing folder for status.jsonl")
    parser.add_argument("--store", type=Path, help="a folder for responses, files and batches; else a temporary one")
    parser.add_argument("--listener", type=int, metavar="FD", help="a listening socket, taken over from another server")
    parser.add_argument("--gate", action="store_true", help="keep the plan's targets in a few requests first, or end")
    options = parser.parse_args(arguments)
    if is_inside(options.plan):
        code = _serve(options, None)
        from appliance.service.engine_thread import exit_with_engine  # noqa: PLC0415 - with its engine alone

        return exit_with_engine(code)
    with socket_folder() as sockets:
        plan = options.plan.resolve()
        engine = spawn_engine(engine_command(), plan, first_socket(sockets)) if starts_alone(plan) else None
        return _serve(options, engine)


def _serve(options: argparse.Namespace, engine: SpawnedEngine | None) -> int:
    """Imports while the engine loads; both take about as long. engine: None where it is a thread of this process, or
    starts with others."""
    from appliance.service.status_file import STATUS_FILE, StatusFile  # noqa: PLC0415 - after the engine's start

    status = StatusFile(options.state / STATUS_FILE if options.state else None)
    status.write("process", pid=os.getpid())
    if (code := _kept(options, status, engine)) is not None:
        return code
    from appliance.server.process.run import run_server  # noqa: PLC0415 - after the engine's start

    return run_server(
        options.plan,
        status,
        store_folder=options.store,
        listener=options.listener,
        engine=engine,
        is_gated=options.gate,
    )


def _kept(options: argparse.Namespace, status: "StatusFile", engine: SpawnedEngine | None) -> int | None:
    """Keeps the API processes if the plan has several, and imports no HTTP. Returns None if it has one."""
    import msgspec  # noqa: PLC0415 - after the engine's start

    from appliance.plan.types import EnginePlan  # noqa: PLC0415 - after the engine's start

    try:
        plan = msgspec.json.decode(options.plan.read_bytes(), type=EnginePlan)
    except (OSError, msgspec.DecodeError):
        return None  # run_server says why
    if plan.serving.api_servers == 1:
        return None
    from appliance.server.workers.keeper import run_keeper  # noqa: PLC0415 - after the engine's start

    return run_keeper(
        options.plan,
        plan,
        status,
        store_folder=options.store,
        listener=options.listener,
        engine=engine,
        is_gated=options.gate,
    )


if __name__ == "__main__":
    sys.exit(main())
