"""Reads GGUF types whose codes choose values of a book: IQ4_NL, IQ4_XS, MXFP4.

Block layouts are those of ggml-common.h (block_iq4_nl and so on). Byte j of a group of 32 holds element j low and
element j + 16 high.
"""

import numpy as np

from appliance.loading.formats.bits import Array
from appliance.loading.formats.blocks32 import block_nibbles
from appliance.loading.formats.coded import Coded, checked_e8m0

_SIZE = 32
_IQ4_NL = np.dtype([("d", "<f2"), ("q", "u1", 16)])
_IQ4_XS = np.dtype([("d", "<f2"), ("high", "<u2"), ("low", "u1", 4), ("q", "u1", (8, 16))])
_MXFP4 = np.dtype([("e", "u1"), ("q", "u1", 16)])


def read_iq4_nl(raw: Array) -> Coded:
    blocks = raw.view(_IQ4_NL)
    return Coded("iq4_nl", _codes(blocks), blocks["d"].astype(np.float32), _SIZE)


def read_iq4_xs(raw: Array) -> Coded:
    """The scale of a group is the block's, times six bits: four in `low`, two in `high`, minus 32."""
    blocks = raw.view(_IQ4_XS)
    low = np.stack((blocks["low"] & 15, blocks["low"] >> 4), axis=-1).reshape(*blocks.shape, 8)
    high = blocks["high"][..., None] >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    factors = (low | high << 4).astype(np.float32) - np.float32(32)
    scale = blocks["d"].astype(np.float32)[..., None] * factors
    return Coded("iq4_nl", _codes(blocks), scale.reshape(len(blocks), -1), _SIZE)


def read_mxfp4(raw: Array) -> Coded:
    """ggml's values are twice those of e2m1, and its scales half of e8m0."""
    blocks = raw.view(_MXFP4)
    return Coded("e2m1", _codes(blocks), checked_e8m0(blocks["e"]), _SIZE)


def _codes(blocks: Array) -> Array:
    """Returns uint8 [N, K]."""
    return block_nibbles(blocks).reshape(len(blocks), -1)
