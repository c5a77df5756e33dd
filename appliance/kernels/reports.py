"""What a kernel set tells of binding."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsReport:
    """Where packed weights came from, how long it took, and why not from the cache where it was not."""

    origin: Literal["cache", "checkpoint"]
    seconds: float
    size_bytes: int
    file: str = ""
    reason: str = ""
