"""Reads GGUF's IQ types of 1 to 3 bits: a code chooses a vector of 8 (4) magnitudes from a grid; signs lie apart.

Block layouts are those of ggml-common.h (block_iq2_xxs and so on), the formulas those of dequantize_row_iq2_xxs and its
siblings in ggml-quants.c. A group of 32 or 16 has a scale of 3 or 4 bits, an odd number times a fraction of the
block's f16. Every value is that fraction times a small integer, so the codes are integers, and exact.
"""

import numpy as np

from appliance.loading.formats.bits import Array
from appliance.loading.formats.grids import GridName, grid
from appliance.loading.formats.groups import Groups

_SIZE = 256
_IQ2_XXS = np.dtype([("d", "<f2"), ("q", "<u4", (8, 2))])
_IQ2_XS = np.dtype([("d", "<f2"), ("q", "<u2", 32), ("scales", "u1", 8)])
_IQ2_S = np.dtype([("d", "<f2"), ("q", "u1", 32), ("signs", "u1", 32), ("high", "u1", 8), ("scales", "u1", 8)])
_IQ3_XXS = np.dtype([("d", "<f2"), ("q", "u1", 64), ("signs", "<u4", 8)])
_IQ3_S = np.dtype([("d", "<f2"), ("q", "u1", 64), ("high", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)])
_IQ1_S = np.dtype([("d", "<f2"), ("q", "u1", 32), ("high", "<u2", 8)])
_IQ1_M = np.dtype([("q", "u1", 32), ("high", "u1", 16), ("scales", "<u2", 4)])
# A number of seven bits stands for the signs of eight values, of which an even number is negative.
_EVEN_SIGNS = np.array([bits | bits.bit_count() % 2 << 7 for bits in range(128)], np.uint8)
_SEVENTHS = np.arange(0, 28, 7, dtype=np.uint32)
_EIGHTH = np.float32(0.125)


def read_iq2_xxs(raw: Array) -> Groups:
    blocks = raw.view(_IQ2_XXS)
    codes, signs = blocks["q"][..., 0], blocks["q"][..., 1]
    chosen = np.ascontiguousarray(codes).view(np.uint8)
    return _int8(blocks, _signed("iq2_xxs", chosen, _packed_signs(signs)), signs >> np.uint32(28))


def read_iq2_xs(raw: Array) -> Groups:
    blocks = raw.view(_IQ2_XS)
    signs = _EVEN_SIGNS[blocks["q"] >> 9]
    return _int8(blocks, _signed("iq2_xs", blocks["q"] & 511, signs), _halves(blocks["scales"]))


def read_iq2_s(raw: Array) -> Groups:
    blocks = raw.view(_IQ2_S)
    chosen = blocks["q"] | _fields(blocks["high"], 2) << 8
    return _int8(blocks, _signed("iq2_s", chosen, blocks["signs"]), _halves(blocks["scales"]))


def read_iq3_xxs(raw: Array) -> Groups:
    """All magnitudes are even."""
    blocks = raw.view(_IQ3_XXS)
    codes = _signed("iq3_xxs", blocks["q"], _packed_signs(blocks["signs"])) // 2
    return _centred(blocks["d"].astype(np.float32) * np.float32(0.5), codes, 6, blocks["signs"] >> np.uint32(28))


def read_iq3_s(raw: Array) -> Groups:
    blocks = raw.view(_IQ3_S)
    chosen = blocks["q"] | _fields(blocks["high"], 1) << 8
    codes = _signed("iq3_s", chosen, blocks["signs"])
    return _centred(blocks["d"].astype(np.float32), codes, 5, _halves(blocks["scales"]))


def read_iq1_s(raw: Array) -> Groups:
    """A value is one of -1, 0 and 1, plus or minus an eighth, which is for the group of 32: an offset. Codes of groups
    with minus an eighth are counted from above, as their offset in eighths then fits a byte."""
    blocks = raw.view(_IQ1_S)
    num_rows, high = len(blocks), blocks["high"]
    chosen = blocks["q"] | _fields(high, 3, count=4) << 8
    digits = grid("iq1")[chosen].reshape(*blocks.shape, 8, 32)
    is_less = high >> 15 != 0
    codes = np.where(is_less[..., None], 1 - digits, 1 + digits).astype(np.uint8)
    factors = _odd(high >> 12 & 7)
    factors[is_less] *= -1
    d = blocks["d"].astype(np.float32)
    return Groups(
        codes=codes.reshape(num_rows, -1),
        bits=2,
        zero=0,
        scale=d,
        offset=d * _EIGHTH,
        group_size=_SIZE,
        sub_scale=factors.reshape(num_rows, -1),
        sub_offset=(-7 * factors).reshape(num_rows, -1),
        sub_group_size=32,
    )


def read_iq1_m(raw: Array) -> Groups:
    """Each eight values have an eighth of their own, and the block's f16 lies in the highest bits of the scales."""
    blocks = raw.view(_IQ1_M)
    high, scales = _fields(blocks["high"], 4), blocks["scales"]
    digits = grid("iq1")[blocks["q"] | (high & 7) << 8]
    codes = digits * np.int8(8) + np.where(high & 8, -1, 1).astype(np.int8)[..., None]
    parts = scales >> 12 << np.arange(0, 16, 4, dtype=np.uint16)
    d = np.ascontiguousarray(np.bitwise_or.reduce(parts, axis=-1)).view(np.float16).astype(np.float32)
    return _centred(d * _EIGHTH, codes, 6, _fields(scales, 3, count=4))


def _signed(name: GridName, chosen: Array, signs: Array) -> Array:
    """Returns the vectors of a grid with their signs, int8 [rows, blocks, 256]. signs: bytes of eight."""
    magnitudes = grid(name)[chosen].reshape(*signs.shape, 8)
    is_negative = signs[..., None] >> np.arange(8, dtype=np.uint8) & 1
    values: Array = np.where(is_negative, -magnitudes, magnitudes)
    return values.reshape(*signs.shape[:2], _SIZE)


def _packed_signs(words: Array) -> Array:
    """Unpacks four numbers of seven bits from each word to bytes of signs [rows, blocks, 32]."""
    sevenths = words[..., None] >> _SEVENTHS & np.uint32(127)
    signs: Array = _EVEN_SIGNS[sevenths]
    return signs.reshape(*words.shape[:2], -1)


def _fields(values: Array, bits: int, count: int | None = None) -> Array:
    """Unpacks `count` numbers of so many bits from each value, the lowest first: uint16 [rows, blocks, values * count].
    As many as there are by default."""
    shifts = bits * np.arange(count or 8 // bits, dtype=np.uint16)
    unpacked: Array = values[..., None].astype(np.uint16) >> shifts & np.uint16((1 << bits) - 1)
    return unpacked.reshape(*values.shape[:2], -1)


def _halves(octets: Array) -> Array:
    return _fields(octets, 4)


def _odd(scales: Array) -> Array:
    """Returns 2 s + 1, int8."""
    doubled: Array = (2 * scales + 1).astype(np.int8)
    return doubled


def _int8(blocks: Array, codes: Array, scales: Array) -> Groups:
    """Makes groups of signed codes, each with the block's f16 times (s + 1/2) / 4."""
    num_rows = len(blocks)
    scale = blocks["d"].astype(np.float32)[..., None] * _EIGHTH * _odd(scales).astype(np.float32)
    return Groups(codes.reshape(num_rows, -1), 8, 0, scale.reshape(num_rows, -1), None, _SIZE // scales.shape[-1])


def _centred(scale: Array, codes: Array, bits: int, scales: Array) -> Groups:
    """Makes groups of 256 with sub-groups, whose factors are 2 s + 1, of signed codes that so many bits can hold."""
    num_rows, zero = len(scale), 1 << (bits - 1)
    return Groups(
        codes=(codes + np.int8(zero)).view(np.uint8).reshape(num_rows, -1),
        bits=bits,
        zero=zero,
        scale=scale,
        offset=None,
        group_size=_SIZE,
        sub_scale=_odd(scales).reshape(num_rows, -1),
        sub_group_size=_SIZE // scales.shape[-1],
    )
