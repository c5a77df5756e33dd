"""What adapters change."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from appliance.kernels.interface import WeightChange


class AdaptedRows(NamedTuple):
    """The adapters of some rows. slots: int [rows], negative for none; scales: f32 [rows]; changes: by slot, and by
    logical weight."""

    slots: torch.Tensor
    scales: torch.Tensor
    changes: Mapping[int, Mapping[str, WeightChange]]

    def of(self, rows: torch.Tensor) -> "AdaptedRows":
        """Returns those of some of the rows, in this order."""
        return AdaptedRows(self.slots[rows], self.scales[rows], self.changes)


def change_product(weight: str, x: torch.Tensor, out: torch.Tensor, adapted: AdaptedRows) -> None:
    """Changes out [rows, width] in place, which is the product of x [rows, D] with a weight [width, D]."""
    for slot, changes in adapted.changes.items():
        rows = adapted.slots == slot
        if weight not in changes or not rows.any():
            continue
        change, before = changes[weight], out[rows]
        added = torch.zeros_like(before)
        if change.up is not None:
            low = x[rows] if change.down is None else x[rows] @ floats(change.down).T
            added = low @ floats(change.up).T
        if change.shift is not None:
            added = added + floats(change.shift)
        if change.stretch is not None:
            added = added + floats(change.stretch) * before
        out[rows] = before + adapted.scales[rows][:, None] * added


def change_rows(weight: str, token_ids: torch.Tensor, out: torch.Tensor, scale: float, adapted: AdaptedRows) -> None:
    """Changes out [rows, D] in place, which has the rows token_ids [rows] of an embedding."""
    for slot, changes in adapted.changes.items():
        rows = adapted.slots == slot
        if weight not in changes or not rows.any():
            continue
        change = changes[weight]
        assert change.up is not None, "an embedding has no vectors"
        added = floats(change.up)[token_ids[rows]]
        added = added if change.down is None else added @ floats(change.down)
        out[rows] += scale * adapted.scales[rows][:, None] * added


def floats(stored: np.ndarray) -> torch.Tensor:
    """Returns stored numbers, f32 or bf16 as uint16, as f32."""
    wide = (stored.astype(np.uint32) << 16).view(np.float32) if stored.dtype == np.uint16 else stored
    return torch.from_numpy(np.ascontiguousarray(wide, np.float32))
