"""Starting a server that outlives us, without a moment in which it runs and nobody knows of it."""

import subprocess
import sys
from collections.abc import Callable, Sequence

from appliance.base.environ import with_changes
from appliance.base.errors import ApplyError
from appliance.deploy.process import ProcessId, identify
from appliance.deploy.state import Generation

# The shell becomes the server (same pid) once a line arrives; when we die before that, it reads the end and ends too.
_GATE = 'read -r go && exec "$@" </dev/null'


def server_command(generation: Generation) -> list[str]:
    plan, folder = str(generation.plan_path), str(generation.folder)
    return [sys.executable, "-m", "appliance.server", "--plan", plan, "--state", folder]


class Launched:
    """A started server. While this process lives it is the parent, so it must ask for the exit code."""

    def __init__(self, popen: "subprocess.Popen[bytes]", process: ProcessId) -> None:
        self._popen = popen
        self.process = process

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._popen.poll()


def launch(generation: Generation, command: Sequence[str], record: Callable[[ProcessId], None]) -> Launched:
    """Starts `command` in a session of its own, with its output in the generation's log.

    `record` writes down the process; the server begins only after it has returned. Raises ApplyError.
    """
    with generation.log_path.open("ab") as log:
        popen = subprocess.Popen(
            ["/bin/sh", "-c", _GATE, "appliance", *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
            env=with_changes(PYTHONUNBUFFERED="1"),
        )
    assert popen.stdin is not None
    process = identify(popen.pid)
    if process is None:
        raise ApplyError("the server's process ended before it began")
    try:
        record(process)
    except BaseException:
        popen.stdin.close()
        popen.wait()
        raise
    popen.stdin.write(b"go\n")
    popen.stdin.close()
    return Launched(popen, process)
