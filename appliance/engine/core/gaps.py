"""How many late steps the readers of running streams may still see: what a bound on a percentile leaves free.

A bound on the 95th percentile of the time between tokens allows one gap in twenty to be longer. Cutting every step to
the bound leaves that unused, and prompts that wait pay for it. So gaps are counted: each one earns `share` of a late
one, and a late one costs one. While there is some left, prompts run in few long steps instead of many short ones.
"""

WINDOW = 1536  # gaps whose allowance may be saved up; as much may be owed


class LateGaps:
    """Over any N gaps at most share * (N + WINDOW) are late by choice. It starts full."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._most = share * WINDOW
        self._left = self._most

    def allow(self, num_decodes: int) -> bool:
        """Whether the next step may be late for so many readers: it may be owed for when half is there."""
        return self._left > 0 and self._left >= min(num_decodes, self._most / 2)

    def count(self, num_decodes: int, *, late: bool) -> None:
        """Takes in a step that ran, whoever made it late."""
        change = num_decodes * (self._share - late)
        self._left = min(self._most, max(-self._most, self._left + change))
