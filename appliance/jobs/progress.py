"""How far a batch is, how fast, and when it will end."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from appliance.base.units import format_duration


@dataclass(slots=True)
class BatchProgress:
    """Counts of lines. `resumed` were answered by earlier runs; they are part of `done` and of no speed."""

    total: int
    resumed: int = 0
    done: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def seconds(self) -> float:
        return self.clock() - self.started

    @property
    def eta_s(self) -> float | None:
        """Estimates the seconds that are left; None before the first line of this run is answered."""
        answered = self.done - self.resumed
        return self.seconds / answered * (self.total - self.done) if answered else None

    def __str__(self) -> str:
        seconds = max(self.seconds, 1e-9)
        rate = (self.done - self.resumed) / seconds
        parts = [f"{self.done}/{self.total}"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if rate:
            parts.append(f"{rate:.1f} requests/s, {self.completion_tokens / seconds:.0f} tokens/s")
        if self.eta_s is not None and self.done < self.total:
            parts.append(f"ETA {format_duration(self.eta_s)}")
        return ", ".join(parts)
