"""AMD accelerators from the kernel driver's topology in sysfs; no library and no command is needed.

Fields as in the kernel's amdkfd topology: gfx_target_version is major * 10000 + minor * 100 + stepping.
"""

from pathlib import Path
from typing import Final

from appliance.base import environ
from appliance.catalog.visible_devices import seen
from appliance.hardware.facts import AcceleratorFacts
from appliance.hardware.probe.files import read_text

_NODES: Final = "sys/class/kfd/kfd/topology/nodes"
_MASKS: Final = (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
_LINK_XGMI: Final = 11
_FRAME_BUFFERS: Final = (1, 2)  # heap types: visible to the host, and private


def probe_amd(root: Path) -> tuple[AcceleratorFacts, ...]:
    """Devices that the compute driver shows to this process, cut down to those that the variables of ROCm show: the
    driver's, and among these HIP's, or CUDA's in its place. Empty without /dev/kfd."""
    if not (root / "dev/kfd").exists():
        return ()
    nodes = sorted((root / _NODES).glob("[0-9]*"), key=lambda path: int(path.name))
    driver = read_text(root / "sys/module/amdgpu/version") or "in-kernel"
    devices = [_device(node, driver) for node in nodes]
    found = [device for device in devices if device is not None]
    for names in _MASKS:
        mask = next((mask for name in names if (mask := environ.snapshot().get(name)) is not None), None)
        found = [found[number] for number in seen(mask, [""] * len(found))]
    return tuple(found)


def _device(node: Path, driver: str) -> AcceleratorFacts | None:
    """Reads a device's properties; None for the CPU's own node."""
    properties = _properties(node / "properties")
    if not properties.get("simd_count") or not properties.get("gfx_target_version"):
        return None
    architecture = gfx_name(properties["gfx_target_version"])
    banks = [_properties(path) for path in node.glob("mem_banks/*/properties")]
    links = [_properties(path).get("type") for path in node.glob("io_links/*/properties")]
    return AcceleratorFacts(
        vendor="amd",
        name=read_text(node / "name") or architecture,
        architecture=architecture,
        memory_bytes=sum(bank["size_in_bytes"] for bank in banks if bank.get("heap_type") in _FRAME_BUFFERS),
        num_units=properties["simd_count"] // max(1, properties.get("simd_per_cu", 4)),
        driver=driver,
        interconnect="xgmi" if _LINK_XGMI in links else "pcie",
    )


def gfx_name(version: int) -> str:
    """90402 is gfx942, 90010 is gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _properties(path: Path) -> dict[str, int]:
    values = {}
    for line in (read_text(path) or "").splitlines():
        key, _, value = line.partition(" ")
        if value.strip().isdigit():
            values[key] = int(value)
    return values
