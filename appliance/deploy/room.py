"""Checks whether a second server fits beside the one that runs."""

from appliance.base.free_memory import free_bytes
from appliance.plan.types import EnginePlan

_SPARE_SHARE = 0.1  # of what the engines of the second server take


def has_room(plan: EnginePlan, available_bytes: int | None = None) -> bool:
    """On the host's memory; a device's is taken to be full, for an engine takes what it can get of it."""
    if plan.device != "cpu":
        return False
    each = sum(item.size_bytes for memory in plan.memory for item in memory.items)
    needed = each * plan.parallel.replicas
    available = free_bytes() if available_bytes is None else available_bytes
    return needed * (1 + _SPARE_SHARE) <= available
