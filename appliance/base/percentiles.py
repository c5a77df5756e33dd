"""Percentiles, by the one rule that benchmarks and servers share."""

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between closest ranks (numpy's default). `values` must be sorted and not empty."""
    rank = (len(values) - 1) * percent / 100
    low, high = math.floor(rank), math.ceil(rank)
    return values[low] + (values[high] - values[low]) * (rank - low)
