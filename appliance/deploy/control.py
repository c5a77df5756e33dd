"""Telling a running server what to do, and hearing its answer."""

import os
import signal
import socket
import tempfile
import time
import uuid
from pathlib import Path

import msgspec

from appliance.base.errors import ApplyError
from appliance.deploy.follow import EventReader
from appliance.deploy.process import ProcessId, is_running
from appliance.deploy.state import Generation, write_atomically, written_to
from appliance.service.control import CONTROL_FILE, ControlCommand, Handover, Reload, RetireCommand
from appliance.service.status_file import STATUS_FILE

_POLL_S = 0.01
ANSWER_S = 30.0


class ControlRefusedError(ApplyError):
    """The server answered that it will not; it is as it was."""


def reload(process: ProcessId, home: Generation, plan: Path, patience_s: float = ANSWER_S) -> None:
    """Returns when the server answers by the new plan; where that has other adapters, they are read and checked first.
    Raises ApplyError with its reason; the old plan then holds."""
    _tell(process, home, Reload(_new_id(), str(plan)), patience_s)


def roll(process: ProcessId, home: Generation, plan: Path, within_s: float, *, is_gated: bool) -> None:
    """Returns when all replicas of the server have the new plan, which each began anew with. Raises ApplyError with its
    reason; the old plan then holds, and replicas that had the new one have gone back."""
    _tell(process, home, Reload(_new_id(), str(plan), within_s, is_gated), 2 * within_s + ANSWER_S)


def retire(process: ProcessId, home: Generation) -> None:
    """Returns when the server accepts no more connections. It ends by itself. Raises ApplyError."""
    _tell(process, home, RetireCommand(_new_id()))


def take_listener(process: ProcessId, home: Generation) -> socket.socket:
    """The listening socket of a running server, which goes on listening. Raises ApplyError."""
    with tempfile.TemporaryDirectory(prefix="appliance-") as folder, socket.socket(socket.AF_UNIX) as meeting:
        place = str(Path(folder) / "listener")
        meeting.bind(place)
        meeting.listen(1)
        meeting.settimeout(ANSWER_S)
        _tell(process, home, Handover(_new_id(), place))
        try:
            connection, _ = meeting.accept()
            with connection:
                _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
        except OSError as error:
            raise ApplyError(f"the running server did not hand its socket over: {error}") from error
    return socket.socket(fileno=descriptors[0])


def _tell(process: ProcessId, home: Generation, command: ControlCommand, patience_s: float = ANSWER_S) -> None:
    answers = EventReader(home.folder / STATUS_FILE)
    answers.read()
    with written_to(home.folder):
        write_atomically(home.folder / CONTROL_FILE, msgspec.json.encode(command))
    if not is_running(process):
        raise ApplyError("the running server has ended")
    os.kill(process.pid, signal.SIGHUP)
    deadline = time.monotonic() + patience_s
    while True:
        is_alive = is_running(process)
        for event in answers.read():
            if event.name == "answer" and event.values["id"] == command.id:
                if not event.values["ok"]:
                    raise ControlRefusedError(f"the running server refused: {event.values['reason']}")
                return
        if not is_alive:
            raise ApplyError("the running server has ended")
        if time.monotonic() > deadline:
            raise ApplyError(f"the running server did not answer within {patience_s:g} s")
        time.sleep(_POLL_S)


def _new_id() -> str:
    return uuid.uuid4().hex
