"""Keys and values of 8 bits: how device code reads and writes codes and scales (kernels/reference/kv_codes.py).

Floats of 8 bits are made and read by integers, so that they are the same numbers on every GPU: sm80 has no such types,
and gfx942 has others of the same size. A code below the least normal number does not occur, but zero.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

KINDS = {torch.int8: 1, torch.float8_e4m3fn: 2, torch.float8_e5m2: 3}  # CODES of kernels; 0 for caches of floats
_MOST_TURNED = 64  # columns of a block of the Hadamard transform


class KvTensors(NamedTuple):
    """A paged cache. keys: [num_blocks, G, block_size, d]; values: [num_blocks, G, block_size, e], None if they are the
    first columns of the keys; both of neighbouring columns, and any other strides. key_scales, value_scales: f32
    [num_blocks, G, block_size] of codes of 8 bits, contiguous in a block; None for floats.
    """

    keys: torch.Tensor
    values: torch.Tensor | None
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None

    @property
    def codes(self) -> int:
        """The constant CODES of kernels."""
        return KINDS.get(self.keys.dtype, 0)

    @property
    def turned_columns(self) -> int:
        """The constant TURN: the columns of a block in which keys are turned; 0 if they are not."""
        width = self.keys.shape[3]
        return min(width & -width, _MOST_TURNED) if self.keys.dtype == torch.int8 else 0

    def pointers(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns keys, values and their scales as kernels take them; what is not there is stood for by the keys."""
        keys = _stored(self.keys)
        values = keys if self.values is None else _stored(self.values)
        key_scales = keys if self.key_scales is None else self.key_scales
        return keys, values, key_scales, key_scales if self.value_scales is None else self.value_scales

    def strides(self) -> tuple[int, ...]:
        """Returns the strides of keys and of values between blocks, heads and tokens, and of scales between blocks."""
        keys, values, key_scales, value_scales = self.pointers()
        of_scales = (0, 0) if self.key_scales is None else (key_scales.stride(0), value_scales.stride(0))
        return *keys.stride()[:3], *values.stride()[:3], *of_scales


def _stored(codes: torch.Tensor) -> torch.Tensor:
    return codes.view(torch.uint8) if codes.dtype in KINDS and codes.dtype != torch.int8 else codes


@triton.jit
def crossed(x, DISTANCE: tl.constexpr):
    """x [rows, columns] -> the sums and differences of columns that are DISTANCE apart, in pairs."""
    pairs = tl.reshape(x, [x.shape[0], x.shape[1] // (2 * DISTANCE), 2, DISTANCE])
    first, second = tl.split(tl.permute(pairs, (0, 1, 3, 2)))
    pairs = tl.permute(tl.join(first + second, first - second), (0, 1, 3, 2))
    return tl.reshape(pairs, [x.shape[0], x.shape[1]])


@triton.jit
def turned(x, BLOCK: tl.constexpr):
    """x f32 [rows, columns], both powers of two -> its Hadamard transform in blocks of BLOCK columns, up to 64."""
    norm: tl.constexpr = BLOCK**0.5
    for step in tl.static_range(6):
        if (1 << step) < BLOCK:
            x = crossed(x, 1 << step)
    return tl.div_rn(x, tl.full([x.shape[0], x.shape[1]], norm, tl.float32))


@triton.jit
def turned_queries(q, BLOCK: tl.constexpr):
    """q [rows, columns] of any type -> what `turned` gives, in that type: a product with the matrix of the transform,
    since tiles of queries are as large as those of products."""
    size: tl.constexpr = 16 if BLOCK < 16 else BLOCK  # of the narrowest product
    norm: tl.constexpr = BLOCK**-0.5
    row, column = tl.arange(0, size)[:, None], tl.arange(0, size)[None, :]
    parity = row & column
    parity = parity ^ (parity >> 4)
    parity = parity ^ (parity >> 2)
    parity = (parity ^ (parity >> 1)) & 1
    matrix = tl.where(row // BLOCK == column // BLOCK, 1 - 2 * parity, 0).to(q.dtype)
    blocks = tl.reshape(q, [q.shape[0] * q.shape[1] // size, size])
    sums = tl.dot(blocks, matrix, input_precision="ieee") * norm
    return tl.reshape(sums, [q.shape[0], q.shape[1]]).to(q.dtype)


@triton.jit
def numbers_of(codes, scale, CODES: tl.constexpr):
    """codes [keys, columns] and scale [keys] -> f32 [keys, columns]."""
    if CODES == 1:
        number = codes.to(tl.float32)
    else:  # sign, exponent and fraction are moved to their places in f32, where the exponent is 120 or 112 too small
        bits = codes.to(tl.int32)
        if CODES == 2:
            number = (((bits & 128) << 24) | ((bits & 127) << 20)).to(tl.float32, bitcast=True) * 1.329227995784916e36
        else:
            number = (((bits & 128) << 24) | ((bits & 127) << 21)).to(tl.float32, bitcast=True) * 5.192296858534828e33
    return number * scale[:, None]


@triton.jit
def codes_of(x, CODES: tl.constexpr):
    """x f32 [heads, columns], zero beyond a head -> codes int32 [heads, columns], and scales f32 [heads].

    The scale of a row with a NaN or an infinity is NaN, which all of its numbers then are.
    """
    largest: tl.constexpr = 127.0 if CODES == 1 else (448.0 if CODES == 2 else 57344.0)
    most = tl.max(tl.abs(x), 1) + tl.sum(x * 0.0, 1)
    scale = tl.div_rn(most, most * 0.0 + largest)
    scale = tl.where(scale < 1e-30, 1e-30, scale)
    inverse = tl.div_rn(scale * 0.0 + 1.0, scale)
    x = x * inverse[:, None]
    x = tl.where(x == x, tl.minimum(tl.maximum(x, -largest), largest), 0.0)
    if CODES == 1:
        codes = ((x + 12582912.0) - 12582912.0).to(tl.int32)  # 1.5 * 2^23: the sum has no place for fractions
    else:
        codes = float_codes(x, 20 if CODES == 2 else 21, 120 if CODES == 2 else 112)
    return codes, scale


@triton.jit
def float_codes(x, SHIFT: tl.constexpr, BIAS: tl.constexpr):
    """Rounds f32 to codes of 8 bits: nearest even, and below the least normal number to that or to zero.

    SHIFT: the bits of a fraction that are left out. BIAS: what exponents of f32 have more.
    """
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    code = ((size + ((1 << (SHIFT - 1)) - 1) + ((size >> SHIFT) & 1)) >> SHIFT) - (BIAS << (23 - SHIFT))
    least: tl.constexpr = (BIAS + 1) << 23
    code = tl.where(size < least, tl.where(size > least - (1 << 23), 1 << (23 - SHIFT), 0), code)
    return code | ((bits >> 24) & 128)


def code_constants(cache: KvTensors) -> dict[str, Any]:
    """Returns the constants that say what a cache holds."""
    return {"CODES": cache.codes, "TURN": cache.turned_columns}
