"""What control groups (version 1 and 2) allow this process: CPU quota and memory limit.

A limit may sit on any group between ours and the root; the smallest counts. Inside a container the path in
/proc/self/cgroup may be the host's and not exist below /sys/fs/cgroup; its parents are then all there is.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from appliance.hardware.probe.files import read_int, read_text

_BASE: Final = "sys/fs/cgroup"


def cpu_quota(root: Path) -> float | None:
    """CPUs worth of time allowed in each period; None when there is no limit."""
    quotas = [quota for group in _groups(root, "") if (quota := _quota_v2(group)) is not None]
    quotas += [quota for group in _groups(root, "cpu") if (quota := _quota_v1(group)) is not None]
    return min(quotas, default=None)


def memory_limit(root: Path) -> int | None:
    """Bytes; None when there is no limit. Version 1 says that with a huge number, which the caller's total caps."""
    limits = [limit for group in _groups(root, "") if (limit := read_int(group / "memory.max")) is not None]
    for group in _groups(root, "memory"):
        if (limit := read_int(group / "memory.limit_in_bytes")) is not None:
            limits.append(limit)
    return min(limits, default=None)


def _quota_v2(group: Path) -> float | None:
    words = (read_text(group / "cpu.max") or "").split()
    if len(words) != 2 or words[0] == "max":
        return None
    return int(words[0]) / int(words[1])


def _quota_v1(group: Path) -> float | None:
    quota, period = read_int(group / "cpu.cfs_quota_us"), read_int(group / "cpu.cfs_period_us")
    if quota is None or period is None or quota <= 0 or period <= 0:
        return None
    return quota / period


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Existing folders of our group and its parents. controller "" is version 2."""
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller not in controllers.split(","):
            continue
        mounts = [_BASE, f"{_BASE}/unified"] if not controller else [f"{_BASE}/{controllers}", f"{_BASE}/{controller}"]
        relative = PurePosixPath(path.lstrip("/"))
        for mount in mounts:
            for group in (relative, *relative.parents):
                folder = root / mount / group
                if ".." not in group.parts and folder.is_dir():
                    yield folder
