"""One command at a time changes a deployment."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from appliance.base.errors import ApplyError
from appliance.deploy.process import ProcessId, identify, is_running
from appliance.deploy.state import written_to

_POLL_S = 0.05


class LockOwner(msgspec.Struct, frozen=True, kw_only=True):
    process: ProcessId
    command: str
    since: float  # seconds since the epoch


@contextmanager
def changing(
    path: Path,
    command: str,
    wait_s: float,
    waiting: Callable[[str], None] = lambda owner: None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Holds the lock at `path`. While another process holds it, `waiting` is called once with its name.

    The kernel gives the lock up with the process that holds it, so it cannot go stale; what the file says about an
    owner that has ended is not believed. Raises ApplyError after `wait_s`, and where the file cannot be written.
    """
    with written_to(path):
        opened = path.open("a+b", buffering=0)
    with opened as stream:
        _acquire(stream.fileno(), path, wait_s, waiting, clock)
        myself = identify(os.getpid())
        assert myself is not None
        stream.truncate(0)
        with suppress(OSError):  # on a full disk the holder's name is missing; the lock holds all the same
            stream.write(msgspec.json.encode(LockOwner(process=myself, command=command, since=time.time())))
        try:
            yield
        finally:
            stream.truncate(0)


def owner_of(path: Path) -> LockOwner | None:
    """Who says to hold the lock and still runs."""
    try:
        owner = msgspec.json.decode(path.read_bytes(), type=LockOwner)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return owner if is_running(owner.process) else None


def _acquire(
    descriptor: int, path: Path, wait_s: float, waiting: Callable[[str], None], clock: Callable[[], float]
) -> None:
    deadline = clock() + wait_s
    has_reported = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = _described(owner_of(path))
        else:
            return
        if clock() >= deadline:
            raise ApplyError(f"this deployment is being changed by {who}", hint="wait for it, or end it")
        if not has_reported:
            waiting(who)
            has_reported = True
        time.sleep(_POLL_S)


def _described(owner: LockOwner | None) -> str:
    if owner is None:
        return "another command"
    return f"`{owner.command}` (pid {owner.process.pid}, for {max(0.0, time.time() - owner.since):.0f} s)"
