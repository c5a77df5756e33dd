"""Locks memory, so that the system never pages it out."""

import contextlib
import ctypes
import mmap
import os
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path

from appliance.base.units import format_size
from appliance.kernels.errors import BindError

_HINT = (
    "raise the limit of locked memory: `ulimit -l unlimited`, LimitMEMLOCK=infinity in a unit of systemd, or "
    "`--ulimit memlock=-1` for a container; or remove hardware.memory.lock"
)
_STATUS = Path("/proc/self/status")

Range = tuple[int, int]  # an address, and so many bytes from there


def lock_memory(ranges: Iterable[Range], resources: contextlib.ExitStack) -> int:
    """Makes all pages of the ranges resident and keeps them so until `resources` are closed; returns their bytes.

    Raises BindError if the system refuses, or does not count them as locked.
    """
    pages = list(_pages(ranges))
    wanted, before = sum(size for _, size in pages), locked_bytes()
    _raise_limit()
    libc = ctypes.CDLL(None, use_errno=True)
    for start, size in pages:
        if libc.mlock(ctypes.c_void_p(start), ctypes.c_size_t(size)) != 0:
            raise BindError(_refusal(wanted, ctypes.get_errno()), hint=_HINT)
        resources.callback(libc.munlock, ctypes.c_void_p(start), ctypes.c_size_t(size))
    shared = 2 * mmap.PAGESIZE * len(pages)  # the first and last page of each, which a neighbour may have locked
    if (found := locked_bytes() - before) < wanted - shared:
        raise BindError(f"the system locked {format_size(found)} of {format_size(wanted)} of memory", hint=_HINT)
    return wanted


def locked_bytes() -> int:
    """Returns how much memory of this process is locked, as the system counts it (proc(5), VmLck)."""
    line = next(each for each in _STATUS.read_text().splitlines() if each.startswith("VmLck:"))
    return int(line.split()[1]) << 10


def _pages(ranges: Iterable[Range]) -> Iterator[Range]:
    """Yields the whole pages of ranges, each once: small weights share pages."""
    page, end = mmap.PAGESIZE, 0
    for address, size in sorted(ranges):
        start, stop = max(address // page * page, end), -(-(address + size) // page) * page
        if start < stop:
            yield start, stop - start
            end = stop


def _raise_limit() -> None:
    """Takes as much of the limit as this process may."""
    _, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (most, most))


def _refusal(wanted: int, error: int) -> str:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    allowed = "unlimited" if limit == resource.RLIM_INFINITY else format_size(limit)
    return f"{format_size(wanted)} of memory cannot be locked: {os.strerror(error)}; the limit is {allowed}"
