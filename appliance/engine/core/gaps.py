"""The allowance of late steps for running streams: the gaps that a bound on a percentile leaves free.

A bound on the 95th percentile of the time between tokens allows one gap in twenty to be longer. Cutting every step to
the bound leaves this allowance unused, and waiting prompts pay for it. So gaps are counted: each gap earns `share` of a
late gap, and a late one costs one. While some allowance is left, prompts run in few long steps, not many short ones.
"""

WINDOW = 1536  # gaps whose allowance may be saved up; the debt has the same limit


class LateGaps:
    """Bounds late gaps: over any N gaps, at most share * (N + WINDOW) are late by choice. The allowance starts full."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._most = share * WINDOW
        self._left = self._most

    def allow(self, num_decodes: int) -> bool:
        """Returns whether the next step may be late for `num_decodes` streams; half of the allowance always suffices.

        The count may then become negative: it is a debt that later gaps repay.
        """
        return self._left > 0 and self._left >= min(num_decodes, self._most / 2)

    def count(self, num_decodes: int, *, late: bool) -> None:
        """Records a step that ran, whatever made it late."""
        change = num_decodes * (self._share - late)
        self._left = min(self._most, max(-self._most, self._left + change))
