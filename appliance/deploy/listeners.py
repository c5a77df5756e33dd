"""Checks that a plan's address is free, or finds its owner, before a server starts to load weights."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from appliance.base.environ import state_dir
from appliance.base.errors import ApplyError
from appliance.deploy.process import identify
from appliance.deploy.state import DeploymentState, deployment_names
from appliance.plan.serving_types import ListenPlan
from appliance.server.http.listen import AddressError, bind, release

_PROC = Path("/proc")
_LISTENS: Final = "0A"  # the state of a socket in /proc/net/tcp


def require_free(listen: ListenPlan, root: Path | None = None) -> None:
    """Binds the address as the server will, and gives it back. Raises ApplyError, which names who listens there.

    root: where deployments keep their state; None is that of this process.
    """
    try:
        listener = bind(listen)
    except AddressError as error:
        if error.number != errno.EADDRINUSE or listen.uds is not None:
            raise ApplyError(str(error), hint=error.hint) from error
        raise _taken(listen, state_dir() if root is None else root) from error
    release(listener, listen)


def _taken(listen: ListenPlan, root: Path) -> ApplyError:
    message = f"cannot listen on {listen.host}:{listen.port}: the port is taken"
    other = "another endpoints.http.port, from 1 to 65535, in the spec or with --set endpoints.http.port=..."
    pids = listening_pids(listen.port)
    if name := _deployment_of(pids, root):
        return ApplyError(f"{message} by the deployment {name}", hint=f"appliance down {name}, or {other}")
    if not pids:
        return ApplyError(f"{message} by a process that this user may not see", hint=f"choose {other}")
    named = ", ".join(f"{_command(pid)} (pid {pid})" for pid in pids)
    return ApplyError(f"{message} by {named}", hint=f"end it, or choose {other}")


def listening_pids(port: int) -> list[int]:
    """Lists the processes that listen on the TCP port, at any address, as far as this user may see them."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    return sorted(pid for pid in _pids() if sockets & set(_links(pid))) if sockets else []


def _inodes(port: int) -> Iterator[str]:
    """proc(5): the second field is the local address, the fourth the state, the tenth the inode."""
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue  # without IPv6 there is no second table
        for fields in map(str.split, lines):
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _links(pid: int) -> Iterator[str]:
    """Yields what the descriptors of a process point to; nothing if it has ended, or belongs to another user."""
    try:
        descriptors = list((_PROC / str(pid) / "fd").iterdir())
    except OSError:
        return
    for descriptor in descriptors:
        try:
            yield os.readlink(descriptor)
        except OSError:
            continue  # closed since


def _command(pid: int) -> str:
    """Returns the program's name alone: its arguments may hold keys, and this is written into the history."""
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return "a process that has just ended"


def _deployment_of(pids: list[int], root: Path) -> str | None:
    """Finds the deployment whose server is one of these processes."""
    holders = [process for pid in pids if (process := identify(pid)) is not None]
    for name in deployment_names(root):
        current = DeploymentState(root, name).current()
        if current is not None and current.process in holders:
            return name
    return None
