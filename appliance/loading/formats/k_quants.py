"""Reads GGUF k-quants, super-blocks of 256 elements in groups of 16 or 32: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.

Block layouts are those of ggml-common.h (block_q2_K and so on); the order of elements is that of dequantize_row_q2_K
and its siblings in ggml-quants.c. The scale of a group of 16 or 32 is the product of the block's f16 and a small
integer: a sub-group's factor.
"""

import numpy as np

from appliance.loading.formats.bits import Array, gather, shifted, split
from appliance.loading.formats.groups import Groups

_Q2_K = np.dtype([("scales", "u1", 16), ("q", "u1", (2, 32)), ("d", "<f2"), ("m", "<f2")])
_Q3_K = np.dtype([("h", "u1", 32), ("q", "u1", (2, 32)), ("scales", "u1", 12), ("d", "<f2")])
_Q4_K = np.dtype([("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("q", "u1", (4, 32))])
_Q5_K = np.dtype([("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("h", "u1", 32), ("q", "u1", (4, 32))])
_Q6_K = np.dtype([("low", "u1", (2, 64)), ("high", "u1", (2, 32)), ("scales", "i1", 16), ("d", "<f2")])


def read_q2_k(raw: Array) -> Groups:
    blocks = raw.view(_Q2_K)
    scales = blocks["scales"]
    return _groups(blocks, split(gather(blocks, "q"), 2, 32), 2, 0, scales & 15, scales >> 4)


def read_q3_k(raw: Array) -> Groups:
    blocks = raw.view(_Q3_K)
    codes = split(gather(blocks, "q"), 2, 32)
    codes |= shifted(split(gather(blocks, "h"), 1, 32), 2).reshape(codes.shape)
    return _groups(blocks, codes, 3, 4, _q3_scales(blocks["scales"]), None)


def read_q4_k(raw: Array) -> Groups:
    blocks = raw.view(_Q4_K)
    return _groups(blocks, split(gather(blocks, "q"), 4, 32), 4, 0, *_six_bit_scales(blocks["scales"]))


def read_q5_k(raw: Array) -> Groups:
    blocks = raw.view(_Q5_K)
    codes = split(gather(blocks, "q"), 4, 32)
    codes |= shifted(split(gather(blocks, "h"), 1, 32), 4).reshape(codes.shape)
    return _groups(blocks, codes, 5, 0, *_six_bit_scales(blocks["scales"]))


def read_q6_k(raw: Array) -> Groups:
    blocks = raw.view(_Q6_K)
    codes = split(gather(blocks, "low"), 4, 64)
    codes |= shifted(split(gather(blocks, "high"), 2, 32), 4).reshape(codes.shape)
    return _groups(blocks, codes, 6, 32, blocks["scales"], None)


def _groups(blocks: Array, codes: Array, bits: int, zero: int, scales: Array, minima: Array | None) -> Groups:
    """Makes groups of codes [N, K / 256, ...] with integer scales and minima [N, K / 256, sub-groups]; minima are
    subtracted."""
    num_rows = blocks.shape[0]
    return Groups(
        codes=codes.reshape(num_rows, -1),
        bits=bits,
        zero=zero,
        scale=blocks["d"].astype(np.float32),
        offset=None if minima is None else -blocks["m"].astype(np.float32),
        group_size=256,
        sub_scale=scales.astype(np.int8).reshape(num_rows, -1),
        sub_offset=None if minima is None else minima.astype(np.int8).reshape(num_rows, -1),
        sub_group_size=256 // scales.shape[-1],
    )


def _six_bit_scales(packed: Array) -> tuple[Array, Array]:
    """Unpacks 12 bytes to eight 6-bit scales and eight 6-bit minima (get_scale_min_k4 in ggml-quants.c)."""
    first, second, third = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate((first & 63, (third & 15) | ((first >> 6) << 4)), axis=-1)
    minima = np.concatenate((second & 63, (third >> 4) | ((second >> 6) << 4)), axis=-1)
    return scales, minima


def _q3_scales(packed: Array) -> Array:
    """Unpacks 12 bytes to sixteen signed 6-bit scales."""
    low = np.concatenate((packed[..., :8] & 15, packed[..., :8] >> 4), axis=-1)
    high = np.concatenate([(packed[..., 8:] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=-1)
    signed: Array = (low | (high << 4)).astype(np.int8)
    signed -= 32
    return signed
