"""Reads GGUF types with 32 elements per block: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

Block layouts are those of ggml-common.h (block_q4_0 and so on): f16 scale `d`, f16 minimum `m` in the _1 types, the
fifth bits of all elements `h`, then nibbles: byte j holds element j low and element j + 16 high.
"""

import numpy as np

from appliance.loading.formats.bits import Array, gather, shifted, split
from appliance.loading.formats.groups import Groups

_SIZE = 32
_Q4_0 = np.dtype([("d", "<f2"), ("q", "u1", 16)])
_Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])
_Q5_0 = np.dtype([("d", "<f2"), ("h", "u1", 4), ("q", "u1", 16)])
_Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("h", "u1", 4), ("q", "u1", 16)])
_Q8_0 = np.dtype([("d", "<f2"), ("q", "u1", 32)])


def read_q4_0(raw: Array) -> Groups:
    blocks = raw.view(_Q4_0)
    return _groups(blocks, block_nibbles(blocks), bits=4, zero=8)


def read_q4_1(raw: Array) -> Groups:
    blocks = raw.view(_Q4_1)
    return _groups(blocks, block_nibbles(blocks), bits=4, zero=0)


def read_q5_0(raw: Array) -> Groups:
    blocks = raw.view(_Q5_0)
    return _groups(blocks, block_nibbles(blocks) | _fifth_bits(blocks), bits=5, zero=16)


def read_q5_1(raw: Array) -> Groups:
    blocks = raw.view(_Q5_1)
    return _groups(blocks, block_nibbles(blocks) | _fifth_bits(blocks), bits=5, zero=0)


def read_q8_0(raw: Array) -> Groups:
    blocks = raw.view(_Q8_0)
    return _groups(blocks, gather(blocks, "q").view(np.int8), bits=8, zero=0)


def _groups(blocks: Array, codes: Array, bits: int, zero: int) -> Groups:
    """Makes groups of blocks [N, K / 32] and their codes."""
    has_minimum = "m" in (blocks.dtype.names or ())
    return Groups(
        codes=codes.reshape(blocks.shape[0], -1),
        bits=bits,
        zero=zero,
        scale=blocks["d"].astype(np.float32),
        offset=blocks["m"].astype(np.float32) if has_minimum else None,
        group_size=_SIZE,
    )


def block_nibbles(blocks: Array) -> Array:
    """Returns uint8 [N * K]: for each block the low nibbles, then the high ones."""
    return split(gather(blocks, "q"), 4, 16).reshape(-1)


def _fifth_bits(blocks: Array) -> Array:
    """Returns the fifth bits, uint8 [N * K], each 0 or 16."""
    return shifted(np.unpackbits(gather(blocks, "h").reshape(-1), bitorder="little"), 4)
