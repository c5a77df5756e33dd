"""Who computes a deployment: devices with their drivers, the choice of kernels, and those that are kept compiled."""

from pathlib import Path
from typing import Final

import msgspec

from appliance.base.environ import cache_dir
from appliance.base.hashing import sha256_file
from appliance.hardware.facts import HardwareFacts
from appliance.kernels.kernel_cache import KERNELS_FOLDER, compiled_kernels, kernel_folder, kernels_digest
from appliance.plan.types import EnginePlan

MOST_KEPT: Final = 2000  # kernels that a record names


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator of the machine."""

    name: str
    architecture: str  # "sm90", "gfx942"
    driver: str


class KeptKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled kernel in the folder. name: of its function, with the ending of its binary."""

    name: str
    sha256: str


class KernelsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """implementations: by who runs them, the operators. folder: of compiled kernels, within the cache or where
    TRITON_CACHE_DIR names it; empty for a set that compiles none. sources_sha256: of the kernels' sources, and of the
    versions of Triton and torch."""

    kernel_set: str
    support: str
    devices: tuple[DeviceRecord, ...]
    implementations: dict[str, tuple[str, ...]]
    folder: str = ""
    sources_sha256: str = ""
    num_kept: int = 0
    kept: tuple[KeptKernel, ...] = ()


def kernels_record(plan: EnginePlan, facts: HardwareFacts) -> KernelsRecord:
    """Reads the folder of kept kernels; a file that another process removes meanwhile is left out."""
    devices = tuple(
        DeviceRecord(name=each.name, architecture=each.architecture, driver=each.driver) for each in facts.accelerators
    )
    implementations: dict[str, list[str]] = {}
    for choice in plan.kernels.choices:
        implementations.setdefault(choice.implementation, []).append(choice.operator)
    found = KernelsRecord(
        kernel_set=plan.kernels.kernel_set,
        support=plan.kernels.support,
        devices=devices if plan.device != "cpu" else (),
        implementations={name: tuple(operators) for name, operators in implementations.items()},
    )
    folder = planned_folder(plan)
    if folder is None:
        return found
    paths = compiled_kernels(folder)
    kept = tuple(each for path in paths[:MOST_KEPT] if (each := _kept(path)) is not None)
    return msgspec.structs.replace(
        found, folder=folder.name, sources_sha256=kernels_digest(), num_kept=len(paths), kept=kept
    )


def planned_folder(plan: EnginePlan) -> Path | None:
    """Returns where the engine of a plan keeps compiled kernels; None for a set that compiles none."""
    if plan.device == "cpu":
        return None
    return kernel_folder(cache_dir() / KERNELS_FOLDER, plan.profile, plan.kernels.cache_dir)


def _kept(path: Path) -> KeptKernel | None:
    try:
        return KeptKernel(name=path.name, sha256=sha256_file(path))
    except FileNotFoundError:
        return None
