"""Reads GGUF types of two to four values, of which only a scale tells the size: Q1_0 (-1 and 1), Q2_0 (-1 to 2), TQ1_0
(-1 to 1, five values in a byte of base three) and TQ2_0 (four in a byte).

Block layouts and the order of elements are those of ggml-quants.c (dequantize_row_tq1_0 and its siblings).
"""

import numpy as np

from appliance.loading.formats.bits import Array, gather, split
from appliance.loading.formats.groups import Groups

_TQ1_0 = np.dtype([("q", "u1", 48), ("h", "u1", 4), ("d", "<f2")])
_TQ2_0 = np.dtype([("q", "u1", (2, 32)), ("d", "<f2")])
_Q1_0 = np.dtype([("d", "<f2"), ("q", "u1", 16)])
_Q2_0 = np.dtype([("d", "<f2"), ("q", "u1", 16)])
_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)


def read_q1_0(raw: Array) -> Groups:
    """A bit is one or minus one: twice the bit, less one."""
    return _in_turn(raw.view(_Q1_0), 1, 2)


def read_q2_0(raw: Array) -> Groups:
    return _in_turn(raw.view(_Q2_0), 2, 1)


def _in_turn(blocks: Array, bits: int, step: int) -> Groups:
    """Makes groups of codes that lie in the order of the elements, the first in the lowest bits, times `step`."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (blocks["q"][..., None] >> shifts & np.uint8((1 << bits) - 1)) * np.uint8(step)
    size = codes.shape[-2] * codes.shape[-1]
    return Groups(codes.reshape(len(blocks), -1), 2, 1, blocks["d"].astype(np.float32), None, size)


def read_tq1_0(raw: Array) -> Groups:
    blocks = raw.view(_TQ1_0)
    octets, rest = gather(blocks, "q"), gather(blocks, "h")
    parts = (_digits(octets[..., :32], 5), _digits(octets[..., 32:], 5), _digits(rest, 4))
    return _groups(blocks, np.concatenate(parts, axis=-1))


def read_tq2_0(raw: Array) -> Groups:
    blocks = raw.view(_TQ2_0)
    return _groups(blocks, split(gather(blocks, "q"), 2, 32))


def _digits(octets: Array, count: int) -> Array:
    """Returns the digits of bytes [..., n], the first of all bytes first: [..., count * n]. A byte is a fraction of
    256: a digit is what carries over when it is times three."""
    turned = octets[..., None, :] * _POWERS[:count, None]
    digits = turned.astype(np.uint16) * 3 >> 8
    return digits.astype(np.uint8).reshape(*octets.shape[:-1], -1)


def _groups(blocks: Array, codes: Array) -> Groups:
    num_rows = len(blocks)
    return Groups(codes.reshape(num_rows, -1), 2, 1, blocks["d"].astype(np.float32), None, 256)
