"""The memory of this machine that can be had without swapping."""

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def free_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Memory that can be had without swapping, of the machine and within our control group."""
    found = [int(line.split()[1]) * 1024 for line in meminfo.read_text().splitlines() if line.startswith("MemAvail")]
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is not None and used is not None:
        found.append(limit - used + _cached(cgroup / "memory.stat"))
    return min(found, default=0)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _cached(path: Path) -> int:
    """Bytes of cached file pages that no process uses; they count as used and are given up first."""
    try:
        rows = dict(line.split() for line in path.read_text().splitlines())
    except OSError:
        return 0
    return int(rows.get("inactive_file", 0))
