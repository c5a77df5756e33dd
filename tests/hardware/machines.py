"""A made-up machine's /proc, /sys and /dev below a folder."""

from pathlib import Path

CPUINFO = """processor	: 0
vendor_id	: GenuineIntel
model name	: Made-up CPU @ 3.00GHz
flags		: fpu sse2 avx2 fma f16c

processor	: 1
vendor_id	: GenuineIntel
flags		: other
"""
CACHES = (("1", "Data", "48K"), ("1", "Instruction", "64K"), ("2", "Unified", "2048K"), ("3", "Unified", "32M"))
ARM_CPUINFO = """processor	: 0
Features	: fp asimd sve
CPU implementer	: 0x41
CPU part	: 0xd40
"""


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def cpu_files(num_cores: int, threads_per_core: int = 2, l3_groups: int = 1) -> dict[str, str]:
    """num_cores cores; siblings are numbered after all first threads, as Linux does. l3_groups: chiplets."""
    files = {"proc/cpuinfo": CPUINFO, "proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB"}
    total = num_cores * threads_per_core
    for cpu in range(total):
        core = cpu % num_cores
        base = f"sys/devices/system/cpu/cpu{cpu}"
        chiplet = core * l3_groups // num_cores
        shared = [n for n in range(total) if (n % num_cores) * l3_groups // num_cores == chiplet]
        files |= {f"{base}/topology/physical_package_id": "0", f"{base}/topology/core_id": str(core)}
        for index, (level, kind, size) in enumerate(CACHES):
            cache = f"{base}/cache/index{index}"
            files |= {f"{cache}/level": level, f"{cache}/type": kind, f"{cache}/size": size}
        files |= {f"{base}/cache/index3/shared_cpu_list": ",".join(map(str, shared))}
    files |= {"sys/devices/system/node/node0/cpulist": f"0-{total - 1}"}
    return files


def amd_files(num_devices: int, version: int = 90402) -> dict[str, str]:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    files = {
        "dev/kfd": "",
        "sys/module/amdgpu/version": "6.10.5",
        f"{nodes}/0/properties": "simd_count 0\ncpu_cores_count 96",
    }
    for number in range(1, num_devices + 1):
        node = f"{nodes}/{number}"
        properties = f"simd_count 1216\nsimd_per_cu 4\ngfx_target_version {version}"
        files |= {
            f"{node}/properties": properties,
            f"{node}/name": "aqua_vanjaram",
            f"{node}/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 206141652992",
            f"{node}/io_links/0/properties": "type 2",
            f"{node}/io_links/1/properties": "type 11",
        }
    return files
