"""Bounds of the sampling parameters that have defaults, by generation_config's names.

A spec, a checkpoint and a request are held to the same; the engine checks again (engine/validation.py).
"""

from dataclasses import dataclass
from typing import Any, Final

LARGEST_INTEGER: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Bound:
    """low, high: the least and the greatest value. words: what is allowed, for people."""

    words: str
    low: float
    high: float
    is_integer: bool = False
    is_above_low: bool = False  # low itself is not allowed

    def holds(self, value: Any) -> bool:
        """False for another type, and for what is no number."""
        if isinstance(value, bool) or not isinstance(value, int if self.is_integer else int | float):
            return False
        return (value > self.low if self.is_above_low else value >= self.low) and value <= self.high


SAMPLING_BOUNDS: Final[dict[str, Bound]] = {
    "temperature": Bound("a number from 0 to 100", 0, 100),
    "top_p": Bound("a number above 0 and at most 1", 0, 1, is_above_low=True),
    "top_k": Bound("an integer of at least -1; 0 and -1 keep all", -1, LARGEST_INTEGER, is_integer=True),
    "min_p": Bound("a number from 0 to 1", 0, 1),
    "presence_penalty": Bound("a number from -2 to 2", -2, 2),
    "frequency_penalty": Bound("a number from -2 to 2", -2, 2),
    "repetition_penalty": Bound("a number above 0 and at most 100", 0, 100, is_above_low=True),
    "max_new_tokens": Bound("an integer of at least 1; a limit of every request", 1, LARGEST_INTEGER, is_integer=True),
}
