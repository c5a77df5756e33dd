"""Which kernel and tile multiply so many rows with a dense weight: a table of measurements, and a rule between them.

Measured on an H100 with bf16 weights; other generations use the same tiles where these fit their shared memory.
"""

import math
from dataclasses import replace
from typing import Literal

import torch

from appliance.kernels.gpu.triton.architectures import architecture
from appliance.kernels.gpu.triton.launch import power_of_two
from appliance.kernels.gpu.triton.linear import MOST_ROWS, LinearTile
from appliance.program.device_memory import PRODUCT_SHARES

LinearKernel = Literal["gemv", "few_rows", "library"]
_WIDE_GEMV, _SMALL_GEMV = LinearTile(1, 2048, 4), LinearTile(2, 1024, 2)
_SMALL = 2 * 1024 * 1024  # numbers of a weight that stays in the second-level cache


def choose_linear(
    features: int, columns: int, rows: int, dtype: torch.dtype, arch: str, num_processors: int,
    batch_invariant: bool = False,
) -> tuple[LinearKernel, LinearTile]:  # fmt: skip
    """Returns the kernel and tile of x [rows, columns] @ weight [features, columns].T.

    batch_invariant: those of MOST_ROWS rows for any number, and never the library: a row then rounds alike in every
    batch.
    """
    if batch_invariant:
        tile = few_rows_tile(features, columns, MOST_ROWS, dtype, arch, num_processors)
        return "few_rows", replace(tile, rows=MOST_ROWS)
    if rows == 1:
        return "gemv", _SMALL_GEMV if features * columns <= _SMALL or columns <= 1024 else _WIDE_GEMV
    if rows > MOST_ROWS:
        return "library", LinearTile(0, 0, 0)
    return "few_rows", few_rows_tile(features, columns, rows, dtype, arch, num_processors)


def few_rows_tile(
    features: int, columns: int, rows: int, dtype: torch.dtype, arch: str, num_processors: int
) -> LinearTile:
    """Returns the tile of `few_rows`: columns are split where the features alone leave processors without a program."""
    free = architecture(arch).shared_bytes
    block = max(16, power_of_two(rows))
    height = 128 if features >= 128 * 2 * num_processors else 64
    depth = 128 if dtype.itemsize == 2 else 64
    buffers = min(4, max(1, free // ((height + block) * depth * dtype.itemsize)))
    programs = math.ceil(features / height)
    wanted = max(1, round(num_processors / programs))
    splits = min(wanted, PRODUCT_SHARES, max(1, columns // (4 * depth)))
    share = math.ceil(math.ceil(columns / splits) / depth) * depth
    return LinearTile(height, depth, 4, buffers, math.ceil(columns / share))
