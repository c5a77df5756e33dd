"""The report of a kernel set about binding."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsReport:
    """The origin of packed weights and the seconds of loading; `reason` says why they did not come from the cache."""

    origin: Literal["cache", "checkpoint"]
    seconds: float
    size_bytes: int
    file: str = ""
    reason: str = ""
