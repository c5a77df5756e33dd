"""Processes that outlive the command that started them. A pid alone may be reused; with its start time it cannot."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

_POLL_S = 0.02
_PROC = Path("/proc")


class ProcessId(msgspec.Struct, frozen=True):
    """start_ticks: clock ticks since the boot that `boot_id` names (proc(5), field 22 of stat)."""

    pid: int
    start_ticks: int
    boot_id: str


def identify(pid: int) -> ProcessId | None:
    """Identifies a process; None when it does not run. A zombie does not run."""
    fields = _stat(pid)
    if fields is None or fields[0] == "Z":
        return None
    return ProcessId(pid, int(fields[19]), _boot_id())


def is_running(process: ProcessId) -> bool:
    return identify(process.pid) == process


def descendants(process: ProcessId) -> list[ProcessId]:
    """Children, their children and so on, as far as they run now."""
    parents: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[ProcessId] = []
    waiting = list(parents.get(process.pid, ()))
    while waiting:
        pid = waiting.pop()
        if (child := identify(pid)) is not None:
            found.append(child)
        waiting += parents.get(pid, ())
    return found


def resident_bytes(processes: Iterable[ProcessId]) -> int:
    """Memory of these processes, shared pages divided among those that share them (PSS; RSS where PSS is hidden)."""
    return sum(_pss_bytes(process.pid) for process in processes)


def terminate(process: ProcessId, grace_s: float, clock: Callable[[], float] = time.monotonic) -> bool:
    """SIGTERM, a wait of up to `grace_s`, then SIGKILL for what is left of the process and its descendants.

    Returns whether everything ended by itself. Signals only processes whose start time is the recorded one.
    """
    family = [process, *descendants(process)]
    _signal(process, signal.SIGTERM)
    deadline = clock() + grace_s
    while is_running(process) and clock() < deadline:
        time.sleep(_POLL_S)
    ended_by_itself = not is_running(process)
    family = [each for each in {*family, *descendants(process)} if each != process]
    if not ended_by_itself:
        _kill(process)
    return _end_all(family, clock() + 2.0, clock) and ended_by_itself


def _end_all(processes: Iterable[ProcessId], deadline: float, clock: Callable[[], float]) -> bool:
    """Lets children that watch their parent end until the deadline; kills the rest. Whether none had to be killed."""
    left = [each for each in processes if is_running(each)]
    while left and clock() < deadline:
        time.sleep(_POLL_S)
        left = [each for each in left if is_running(each)]
    for each in left:
        _kill(each)
    return not left


def _kill(process: ProcessId) -> None:
    """Returns when it is gone: the kernel takes a moment to free its port and memory."""
    _signal(process, signal.SIGKILL)
    while is_running(process):
        time.sleep(_POLL_S)


def _signal(process: ProcessId, number: signal.Signals) -> None:
    if not is_running(process):
        return
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return  # it ended in between


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat after the name: state first."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return text.rsplit(")", 1)[1].split()


def _boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def _pss_bytes(pid: int) -> int:
    try:
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        fields = _stat(pid)
        return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") if fields else 0
    return 0
