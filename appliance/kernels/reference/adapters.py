"""What adapters add to a Linear."""

from collections.abc import Mapping

import numpy as np
import torch

from appliance.kernels.interface import LowRankMap


def change(
    weight: str, width: int, x: torch.Tensor, slots: torch.Tensor, adapters: Mapping[int, Mapping[str, LowRankMap]]
) -> torch.Tensor:
    """Returns what the adapters in `slots` [rows] add to the product of x [rows, D] with a weight [width, D]."""
    added = torch.zeros(len(x), width)
    for slot, maps in adapters.items():
        if weight in maps:
            rows = slots == slot
            down, up = (_floats(each) for each in (maps[weight].down, maps[weight].up))
            added[rows] = x[rows] @ down.T @ up.T
    return added


def _floats(stored: np.ndarray) -> torch.Tensor:
    """Returns stored numbers, f32 or bf16 as uint16, as f32."""
    wide = (stored.astype(np.uint32) << 16).view(np.float32) if stored.dtype == np.uint16 else stored
    return torch.from_numpy(np.ascontiguousarray(wide, np.float32))
