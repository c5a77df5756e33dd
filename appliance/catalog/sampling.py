"""The sampling parameters, each declared once: its type in arrays, its neutral value, and its bounds.

The same bounds apply to a spec, a checkpoint and a request. The engine's rows, the arrays of a kernel set's sampler and
the order of its native struct follow COLUMNS.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

LARGEST_INTEGER: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Bound:
    """The bounds of a value. low, high: the least and the greatest value. words: the allowed values, for people."""

    words: str
    low: float
    high: float
    is_integer: bool = False
    is_above_low: bool = False  # low itself is not allowed
    has_zero: bool = False  # 0 is allowed as well

    def holds(self, value: Any) -> bool:
        """Returns whether the value is within the bounds; False for another type and for NaN."""
        if isinstance(value, bool) or not isinstance(value, int if self.is_integer else int | float):
            return False
        if self.has_zero and value == 0:
            return True
        return (value > self.low if self.is_above_low else value >= self.low) and value <= self.high


@dataclass(frozen=True, slots=True)
class SamplingColumn:
    """A parameter that a sampler reads for each row. neutral: the value with which it changes nothing."""

    name: str
    dtype: Literal["f32", "i32"]
    neutral: float
    bound: Bound


# In the order of appl_sampling (kernels/include/appliance_abi.h). Logits are divided in 32 bits by temperatures and
# repetition penalties: with less than their least values, different logits would all become infinite.
COLUMNS: Final = (
    SamplingColumn("temperature", "f32", 0.0, Bound("0, or a number from 1e-20 to 100", 1e-20, 100, has_zero=True)),
    SamplingColumn("top_p", "f32", 1.0, Bound("a number above 0 and at most 1", 0, 1, is_above_low=True)),
    SamplingColumn("min_p", "f32", 0.0, Bound("a number from 0 to 1", 0, 1)),
    SamplingColumn("repetition_penalty", "f32", 1.0, Bound("a number from 1e-9 to 100", 1e-9, 100)),
    SamplingColumn("presence_penalty", "f32", 0.0, Bound("a number from -2 to 2", -2, 2)),
    SamplingColumn("frequency_penalty", "f32", 0.0, Bound("a number from -2 to 2", -2, 2)),
    SamplingColumn(
        "top_k",
        "i32",
        0,
        Bound(f"an integer from 0 to {LARGEST_INTEGER}; 0 keeps all", 0, LARGEST_INTEGER, is_integer=True),
    ),
)

_AT_LEAST_ONE = Bound("an integer of at least 1; a limit of every request", 1, LARGEST_INTEGER, is_integer=True)
_ALL_OF_OLD = Bound("an integer of at least -1; 0 and -1 keep all", -1, LARGEST_INTEGER, is_integer=True)

# Bounds of the parameters that have defaults, by generation_config's names; there a top_k of -1 is an older form of 0.
SAMPLING_BOUNDS: Final[dict[str, Bound]] = {
    **{column.name: column.bound for column in COLUMNS},
    "top_k": _ALL_OF_OLD,
    "max_new_tokens": _AT_LEAST_ONE,
}
