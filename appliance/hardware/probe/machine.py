"""Facts of the machine this process runs on."""

import os
import platform
from pathlib import Path

from appliance.base.native import built_levels, torch_version
from appliance.hardware.facts import HardwareFacts, MemoryFacts
from appliance.hardware.measured import load_measured
from appliance.hardware.probe.amd import probe_amd
from appliance.hardware.probe.cgroup import cpu_quota, memory_limit
from appliance.hardware.probe.cpu import probe_cpu
from appliance.hardware.probe.files import read_text
from appliance.hardware.probe.nvidia import probe_nvidia

THIS_MACHINE = "this-machine"


def probe_machine(
    root: Path = Path("/"), *, affinity: tuple[int, ...] | None = None, architecture: str | None = None
) -> HardwareFacts:
    """What the operating system lets this process use, with the figures of an earlier `doctor --measure`.

    root, affinity and architecture are for made-up machines.
    """
    affinity = affinity or _affinity()
    cpu = probe_cpu(root, architecture or platform.machine(), affinity, cpu_quota(root))
    facts = HardwareFacts(
        name=THIS_MACHINE,
        os=platform.system().lower(),
        cpu=cpu,
        memory=_memory(root),
        accelerators=probe_nvidia(root) + probe_amd(root),
        built_levels=built_levels(),
        torch=torch_version(),
    )
    return load_measured(facts)


def _affinity() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _memory(root: Path) -> MemoryFacts:
    page = os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * page
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) << 10
    return MemoryFacts(total_bytes=total, limit_bytes=min(total, memory_limit(root) or total), page_bytes=page)
