"""Products by torch whose rows round alike, however many there are."""

from collections.abc import Callable

import torch


def by_rows(multiply: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, fixed_rows: int) -> torch.Tensor:
    """Returns multiply(x), x [T, ...], which gives a row for each row.

    fixed_rows: 0 for all at once; else so many at a time, the last of them padded with zeros: libraries choose how they
    multiply by the number of rows, and so every row is multiplied in the same way.
    """
    if not fixed_rows or not len(x):
        return multiply(x)
    rest = -len(x) % fixed_rows
    padded = torch.cat((x, x.new_zeros(rest, *x.shape[1:]))) if rest else x
    blocks = range(0, len(x), fixed_rows)
    return torch.cat([multiply(padded[start : start + fixed_rows]) for start in blocks])[: len(x)]
