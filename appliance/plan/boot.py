"""BootReport: what could only be measured at the start, and how far the plan was from it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from appliance.base.errors import ApplianceError
from appliance.plan.types import EnginePlan

TOLERANCE = 0.10
SMALL_BYTES = 8 << 20  # an item below this is judged with the total alone
MEASURED_ITEMS = (
    *("weights", "logit_screen", "kv_cache", "states", "swap", "adapters", "activations", "spread_rows", "workspace"),
    *("draft_weights", "draft_kv_cache", "draft_activations", "draft_workspace", "draft_inputs", "draft_states"),
)


STATUS_FILE = "status.jsonl"  # what a server writes into its state folder; see service.status_file


class WeightsOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where packed weights came from, how long it took, and why not from the cache where it was not."""

    origin: Literal["cache", "checkpoint"]
    seconds: float
    size_bytes: int
    file: str = ""
    reason: str = ""


class KernelsOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Compiled kernels that an earlier start left: their folder, and how many there were."""

    folder: str
    num_kept: int


class BootReport(msgspec.Struct, frozen=True, kw_only=True):
    """The engine writes one when it is ready."""

    seconds: dict[str, float]  # by phase
    memory_bytes: dict[str, int]  # by purpose: MEASURED_ITEMS
    num_blocks: int
    weights: WeightsOrigin | None = None
    kernels: KernelsOrigin | None = None  # of a GPU set
    locked_bytes: int | None = None  # of this process, as the system counts it; None: nothing was to be locked


class Comparison(msgspec.Struct, frozen=True):
    """One planned size against the measured one."""

    name: str
    planned_bytes: int
    measured_bytes: int

    @property
    def difference(self) -> float:
        """Planned over measured, less one; zero where both are nothing."""
        if not self.measured_bytes:
            return 0.0 if not self.planned_bytes else float("inf")
        return self.planned_bytes / self.measured_bytes - 1

    @property
    def is_close(self) -> bool:
        if max(self.planned_bytes, self.measured_bytes) < SMALL_BYTES:
            return True
        return abs(self.difference) <= TOLERANCE


def compare_boot(plan: EnginePlan, report: BootReport) -> list[Comparison]:
    """Each measured item, then their total, of the first device."""
    planned = {item.name: item.size_bytes for item in (*plan.memory[0].items, *plan.memory[0].host_items)}
    rows = [
        Comparison(name, planned.get(name, 0), report.memory_bytes.get(name, 0))
        for name in _measured_items(plan)
        if name in planned or name in report.memory_bytes
    ]
    total = Comparison("total", sum(row.planned_bytes for row in rows), sum(row.measured_bytes for row in rows))
    return [*rows, total]


def _measured_items(plan: EnginePlan) -> tuple[str, ...]:
    """Torch allocates activations while it runs modelling code, so these have no measured size."""
    if plan.model.modelling is None:
        return MEASURED_ITEMS
    return tuple(name for name in MEASURED_ITEMS if name not in ("activations", "workspace"))


def read_boot_report(place: Path) -> BootReport:
    """The report in a JSON file; in a server's status file, or the newest below a folder, its last one.

    Raises ApplianceError when there is none.
    """
    try:
        if place.is_dir():
            found = sorted(place.rglob(STATUS_FILE), key=lambda file: file.stat().st_mtime)
            place = found[-1] if found else place / STATUS_FILE
        if place.suffix != ".jsonl":
            return msgspec.json.decode(place.read_bytes(), type=BootReport)
        reports = list(_status_reports(place.read_bytes()))
    except OSError:
        raise ApplianceError(f"there is no boot report at {place}", hint="is the deployment running?") from None
    except msgspec.DecodeError as error:
        raise ApplianceError(f"{place.name} holds no boot report: {error}") from error
    if not reports:
        raise ApplianceError(f"{place} has no boot report yet", hint="wait until the deployment is ready")
    return reports[-1]


def _status_reports(text: bytes) -> Iterator[BootReport]:
    for line in text.splitlines():
        if b'"event":"boot"' in line:
            yield msgspec.json.decode(line, type=BootReport)
