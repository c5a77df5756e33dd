"""Checks whether a second server fits beside the one that runs."""

from pathlib import Path

from appliance.plan.types import EnginePlan

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_SPARE_SHARE = 0.1  # of what the engines of the second server take


def has_room(plan: EnginePlan, available_bytes: int | None = None) -> bool:
    """On the host's memory; a device's is taken to be full, for an engine takes what it can get of it."""
    if plan.device != "cpu":
        return False
    each = sum(item.size_bytes for memory in plan.memory for item in memory.items)
    needed = each * plan.parallel.replicas
    available = free_bytes() if available_bytes is None else available_bytes
    return needed * (1 + _SPARE_SHARE) <= available


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
