"""Starting a server that outlives us, without a moment in which it runs unrecorded."""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from appliance.base.environ import absolute_python_path, cache_dir, with_changes
from appliance.base.errors import ApplyError
from appliance.deploy.process import ProcessId, identify
from appliance.deploy.state import Generation

_SHELL = "/bin/sh"
_LISTENER = 200  # above any descriptor of ours, so that duplicating it always clears close-on-exec
# The shell becomes the server (same pid) once a line arrives; when we die before that, it reads the end and ends too.
_GATE = 'cd / && read -r go && exec "$@" </dev/null'

Command = Callable[[Generation], Sequence[str]]


def server_command(generation: Generation) -> list[str]:
    plan, folder = str(generation.plan_path), str(generation.folder)
    store = str(generation.folder.parent.parent / "store")  # outlives the generation
    return [sys.executable, "-m", "appliance.server", "--plan", plan, "--state", folder, "--store", store]


def launch(
    generation: Generation,
    command: Sequence[str],
    record: Callable[[ProcessId], None],
    listener: socket.socket | None = None,
) -> ProcessId:
    """Starts `command` in a session of its own, with its output in the generation's log.

    `record` writes down the process; the server begins only after it has returned. `listener`: a socket that it takes
    over. Raises ApplyError.
    """
    inherited: list[tuple[int, int, int]] = []
    if listener is not None:
        command = [*command, "--listener", str(_LISTENER)]
        inherited = [(os.POSIX_SPAWN_DUP2, listener.fileno(), _LISTENER)]
    gate_end, our_end = os.pipe()
    try:
        with generation.log_path.open("ab") as log:
            pid = os.posix_spawn(
                _SHELL,
                [_SHELL, "-c", _GATE, "appliance", *command],
                with_changes(
                    PYTHONUNBUFFERED="1", APPLIANCE_CACHE=str(cache_dir().absolute()), **absolute_python_path()
                ),
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, gate_end, 0),
                    (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
                    *inherited,
                    *[(os.POSIX_SPAWN_CLOSE, each) for each in _handed_down() if each not in (0, 1, 2, _LISTENER)],
                ],
                setsid=True,
            )
        process = identify(pid)
        if process is None:
            raise ApplyError("the server's process ended before it began")
        record(process)
        os.write(our_end, b"go\n")
    except OSError as error:
        raise ApplyError(f"the server's process cannot be started: {error.strerror or error}") from error
    finally:
        os.close(gate_end)
        os.close(our_end)
    return process


def _handed_down() -> list[int]:
    """Returns the descriptors that a child would have of us: a server that kept a caller's pipe open would have its
    reader wait as long as it serves."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing is closed by now
            if os.get_inheritable(int(name)):
                found.append(int(name))
    return found


def reap(process: ProcessId) -> None:
    """Takes the exit code of an ended child, so that no zombie is left of it. Nothing for those of other parents."""
    try:
        os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return
