"""What replacing engines one after the other has to keep."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from appliance.service.health import EngineHealth

Check = Callable[[str, EngineHealth], Awaitable[None]]
"""Tries a new engine, at an address, before it gets requests. Raises ApplianceError with what is wrong with it."""


@dataclass(frozen=True, slots=True)
class RollRules:
    """within_s: for all engines together; None: as long as it takes."""

    within_s: float | None = None
    check: Check | None = None
