"""CPU facts from /proc/cpuinfo and /sys/devices/system: flags, caches, cores."""

import re
from pathlib import Path
from typing import Final

from appliance.hardware.facts import CpuFacts, NumaNode
from appliance.hardware.probe.files import parse_cpu_list, read_int, read_text

_CPUS: Final = "sys/devices/system/cpu"
_NODES: Final = "sys/devices/system/node"
_ARM: Final = "0x41"
# Where the kernel tells nothing (some containers): small enough to be safe for blocking on any server since 2012.
_CACHE_FALLBACK: Final = {1: 32 << 10, 2: 256 << 10, 3: 8 << 20}
_SIZE_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def probe_cpu(root: Path, architecture: str, affinity: tuple[int, ...], quota: float | None) -> CpuFacts:
    """affinity: logical CPUs this process may use, not empty. quota: CPUs of time allowed, None for no limit."""
    info = _cpuinfo(root)
    cap = max(1, int(quota)) if quota is not None else len(affinity)
    caches = _caches(root, affinity[0])
    return CpuFacts(
        vendor=info.get("vendor_id") or ("ARM" if info.get("CPU implementer") == _ARM else "unknown"),
        model_name=info.get("model name") or info.get("CPU part", "unknown"),
        architecture=architecture,
        flags=tuple(sorted((info.get("flags") or info.get("Features", "")).split())),
        num_cores=min(cap, _num_physical(root, affinity)),
        num_threads=min(cap, len(affinity)),
        affinity=affinity,
        l1d_bytes=caches[1],
        l2_bytes=caches[2],
        l3_bytes=_package_l3(root, affinity[0]) or caches[3],
        num_numa_nodes=max(1, sum(1 for _ in (root / _NODES).glob("node[0-9]*"))),
        numa_nodes=_numa_nodes(root, affinity),
    )


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's lines."""
    values: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        values[key.strip()] = value.strip()
    return values


def _numa_nodes(root: Path, affinity: tuple[int, ...]) -> tuple[NumaNode, ...]:
    """The nodes, in order, with the CPUs in the mask; nodes of memory alone have none, and are left out."""
    found = []
    for folder in (root / _NODES).glob("node[0-9]*"):
        cpus = tuple(cpu for cpu in parse_cpu_list(read_text(folder / "cpulist") or "") if cpu in affinity)
        if cpus:
            found.append(NumaNode(int(folder.name.removeprefix("node")), cpus))
    return tuple(sorted(found, key=lambda node: node.number))


def _num_physical(root: Path, affinity: tuple[int, ...]) -> int:
    """Cores in the mask; logical CPUs where the kernel does not tell cores."""
    cores = set()
    for cpu in affinity:
        topology = root / _CPUS / f"cpu{cpu}" / "topology"
        package, core = read_int(topology / "physical_package_id"), read_int(topology / "core_id")
        cores.add((package, core) if core is not None else ("logical", cpu))
    return len(cores)


def _caches(root: Path, cpu: int) -> dict[int, int]:
    """Bytes of the data (or unified) cache of each level, as one CPU sees it."""
    sizes = dict(_CACHE_FALLBACK)
    for index in (root / _CPUS / f"cpu{cpu}" / "cache").glob("index[0-9]*"):
        level, size = read_int(index / "level"), _size(read_text(index / "size"))
        if level in sizes and size and read_text(index / "type") != "Instruction":
            sizes[level] = size
    return sizes


def _package_l3(root: Path, cpu: int) -> int:
    """Bytes of all level-3 caches in the package of `cpu`: chiplets have one each. 0 when the kernel does not tell."""
    package = read_int(root / _CPUS / f"cpu{cpu}" / "topology" / "physical_package_id")
    total = 0
    seen: set[int] = set()
    for folder in (root / _CPUS).glob("cpu[0-9]*"):
        number = int(folder.name.removeprefix("cpu"))
        if number in seen or read_int(folder / "topology" / "physical_package_id") != package:
            continue
        for index in (folder / "cache").glob("index[0-9]*"):
            if read_int(index / "level") == 3:
                seen.update(parse_cpu_list(read_text(index / "shared_cpu_list") or str(number)))
                total += _size(read_text(index / "size"))
    return total


def _size(text: str | None) -> int:
    """`32768K` in bytes; 0 when it is no size."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text or "")
    return int(match[1]) * _SIZE_UNITS[match[2]] if match else 0
