"""Unpacks bits fast in numpy: with whole arrays of 64-bit words, and short runs of bytes copied as one element.

numpy handles a short inner dimension (16 or 32 bytes of every block) element by element, ten times slower than a record
of that many bytes. So runs are gathered and placed as records, and arithmetic is done only on flat arrays.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def gather(blocks: Array, name: str) -> Array:
    """Returns the bytes of one field of all blocks, contiguous: uint8 [*blocks.shape, *field shape]."""
    kind, offset = (blocks.dtype.fields or {})[name][:2]
    run: Any = {
        "names": ["run"],
        "formats": [f"V{kind.itemsize}"],
        "offsets": [offset],
        "itemsize": blocks.dtype.itemsize,
    }
    runs = np.ascontiguousarray(blocks.view(np.dtype(run))["run"])
    return runs.view(np.uint8).reshape(*blocks.shape, *kind.shape)


def split(packed: Array, num_bits: int, run: int) -> Array:
    """Splits contiguous bytes [..., run] into values [..., 8 / num_bits, run]: first the lowest bits of all bytes."""
    words = packed.reshape(-1).view(np.uint64)
    mask = np.uint64(0x0101010101010101 * ((1 << num_bits) - 1))
    num_parts = 8 // num_bits
    values = np.empty((packed.size // run, num_parts, run), np.uint8)
    records = values.view(f"V{run}")[..., 0]
    for index in range(num_parts):
        part = (words >> np.uint64(index * num_bits)) & mask
        records[:, index] = part.view(f"V{run}")
    return values.reshape(*packed.shape[:-1], num_parts, run)


def shifted(values: Array, num_bits: int) -> Array:
    """Shifts each of the contiguous bytes left. The bits that leave a byte must be zero."""
    words = values.reshape(-1).view(np.uint64)
    return (words << np.uint64(num_bits)).view(np.uint8).reshape(values.shape)
