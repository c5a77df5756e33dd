"""Commands to a running server: a file in its state folder, and SIGHUP.

It answers with the event "answer" in its status file: id, ok, reason. Both are private to the user who runs it.
"""

from pathlib import Path

import msgspec

CONTROL_FILE = "control.json"


class Reload(msgspec.Struct, frozen=True, tag="reload"):
    """Take this plan, which differs only in what is live, or, with replicas, in what each of them can start anew with.

    within_s: for that, then those that had started go back. is_gated: each has to keep the targets of the plan first,
    where that has a gate."""

    id: str
    plan: str
    within_s: float | None = None
    is_gated: bool = False


class Handover(msgspec.Struct, frozen=True, tag="handover"):
    """Send the listening socket to the Unix socket at `to` (SCM_RIGHTS). Both then share one queue of connections."""

    id: str
    to: str


class RetireCommand(msgspec.Struct, frozen=True, tag="retire"):
    """Another server listens on the same socket: accept no more connections, finish what is open, and end."""

    id: str


ControlCommand = Reload | Handover | RetireCommand


def read_command(folder: Path) -> ControlCommand:
    """Raises OSError, msgspec.DecodeError."""
    command: ControlCommand = msgspec.json.decode((folder / CONTROL_FILE).read_bytes(), type=ControlCommand)
    return command
