"""Rotary positions, and the writing of keys and values to the paged cache: operators Rope and KvWrite, and both in one.

The slot of a token is block * block_size + its place in the block.
"""

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.kv_codes import KvTensors, code_constants, codes_of, turned
from appliance.kernels.gpu.triton.launch import after_previous, launch, power_of_two, row_stride

_TILE = 4096  # numbers that one program holds at a time


@triton.jit
def rotate(
    source, target, from_at, to_at, is_live, table_row,
    ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Rotates the first ROTARY columns of heads at the offsets from_at, to_at [heads, 1]."""
    pair = tl.arange(0, PAIRS)[None, :]
    half: tl.constexpr = ROTARY // 2
    if INTERLEAVED:
        first = 2 * pair
        second = first + 1
    else:
        first = pair
        second = first + half
    cos = tl.load(table_row + pair, mask=pair < half, other=0.0).to(tl.float32)
    sin = tl.load(table_row + half + pair, mask=pair < half, other=0.0).to(tl.float32)
    is_live = is_live & (pair < half)
    a = tl.load(source + from_at + first, mask=is_live, other=0.0).to(tl.float32)
    b = tl.load(source + from_at + second, mask=is_live, other=0.0).to(tl.float32)
    tl.store(target + to_at + first, (a * cos - b * sin).to(target.dtype.element_ty), mask=is_live)
    tl.store(target + to_at + second, (b * cos + a * sin).to(target.dtype.element_ty), mask=is_live)


@triton.jit
def copy_columns(source, target, from_at, to_at, is_live, first, width, BLOCK: tl.constexpr):
    """Copies columns first <= c < width of heads."""
    column = tl.arange(0, BLOCK)[None, :]
    is_live = is_live & (column >= first) & (column < width)
    x = tl.load(source + from_at + column, mask=is_live, other=0.0).to(tl.float32)
    tl.store(target + to_at + column, x.to(target.dtype.element_ty), mask=is_live)


@triton.jit
def rotated(
    source, at, is_live, table_row,
    WIDTH: tl.constexpr, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Returns heads at the offsets `at` [heads, 1] as f32 [heads, COLUMNS], of which the first ROTARY are rotated."""
    column = tl.arange(0, COLUMNS)[None, :]
    half: tl.constexpr = ROTARY // 2
    x = tl.load(source + at + column, mask=is_live & (column < WIDTH), other=0.0).to(tl.float32)
    if ROTARY > 0:
        if INTERLEAVED:
            angle, is_first = column // 2, column % 2 == 0
            other = column + 1 - 2 * (column % 2)
        else:
            angle, is_first = column % half, column < half
            other = (column + half) % ROTARY
        is_turned = column < ROTARY
        cos = tl.load(table_row + angle, mask=is_turned, other=1.0).to(tl.float32)
        sin = tl.load(table_row + half + angle, mask=is_turned, other=0.0).to(tl.float32)
        y = tl.load(source + at + other, mask=is_live & is_turned, other=0.0).to(tl.float32)
        x = x * cos + tl.where(is_first, -y, y) * sin
    return x


@triton.jit
def store_codes(
    x, codes_to, scales, to_at, scale_at, is_live, WIDTH: tl.constexpr, CODES: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Stores the codes of x f32 [heads, COLUMNS] at the offsets to_at, and scales at scale_at, both [heads, 1]."""
    codes, scale = codes_of(x, CODES)
    column = tl.arange(0, COLUMNS)[None, :]
    tl.store(codes_to + to_at + column, codes.to(codes_to.dtype.element_ty), mask=is_live & (column < WIDTH))
    tl.store(scales + scale_at, scale[:, None], mask=is_live)


@triton.jit
def rope_kernel(
    x, positions, table, x_stride, num_heads,
    HEAD_DIM: tl.constexpr, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr, PAIRS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a token and HEADS heads, in place: a thread reads and writes both numbers of its pairs."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    after_previous(PDL)
    table_row = table + tl.load(positions + token).to(tl.int64) * ROTARY
    at = token * x_stride + head * HEAD_DIM
    rotate(x, x, at, at, head < num_heads, table_row, ROTARY, INTERLEAVED, PAIRS)


@triton.jit
def rope_write_kernel(
    q, k, v, positions, table, slots, keys, values, key_scales, value_scales, q_stride, k_stride, v_stride,
    key_block, key_head, key_token, value_block, value_head, value_token, key_scale_block, value_scale_block,
    num_heads, num_kv_heads,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr, COLUMNS: tl.constexpr,
    VALUE_COLUMNS: tl.constexpr, CODES: tl.constexpr, TURN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs of a token: for each HEADS heads of q one, in place; the last rotates keys, and stores them and values.

    ROTARY 0: nothing is rotated. VALUE_DIM 0: values are columns of the keys.
    """
    token = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, HEADS)[:, None]
    after_previous(PDL)
    table_row = table
    if ROTARY > 0:
        table_row = table + tl.load(positions + token).to(tl.int64) * ROTARY
    if tl.program_id(1) < tl.num_programs(1) - 1:
        head = tl.program_id(1) * HEADS + place
        at = token * q_stride + head * HEAD_DIM
        rotate(q, q, at, at, head < num_heads, table_row, ROTARY, INTERLEAVED, PAIRS)
    else:
        slot = tl.load(slots + token)
        block = (slot // BLOCK_SIZE).to(tl.int64)
        for first in tl.range(0, num_kv_heads, HEADS):
            head = first + place
            is_live = (head < num_kv_heads) & (slot >= 0)
            at = token * k_stride + head * HEAD_DIM
            to = block * key_block + slot % BLOCK_SIZE * key_token + head * key_head
            scale_place = head * BLOCK_SIZE + slot % BLOCK_SIZE
            if CODES > 0:
                x = rotated(k, at, is_live, table_row, HEAD_DIM, ROTARY, INTERLEAVED, COLUMNS)
                tl.debug_barrier()  # before k itself is rotated: another thread may have read its other half
                if TURN > 0:
                    x = turned(x, TURN)
                scale_at = block * key_scale_block + scale_place
                store_codes(x, keys, key_scales, to, scale_at, is_live, HEAD_DIM, CODES, COLUMNS)
            else:
                if ROTARY > 0:
                    rotate(k, keys, at, to, is_live, table_row, ROTARY, INTERLEAVED, PAIRS)
                if ROTARY < HEAD_DIM:
                    copy_columns(k, keys, at, to, is_live, ROTARY, HEAD_DIM, COLUMNS)
            if ROTARY > 0:
                rotate(k, k, at, at, head < num_kv_heads, table_row, ROTARY, INTERLEAVED, PAIRS)
            if VALUE_DIM > 0:
                at = token * v_stride + head * VALUE_DIM
                to = block * value_block + slot % BLOCK_SIZE * value_token + head * value_head
                if CODES > 0:
                    y = rotated(v, at, is_live, table_row, VALUE_DIM, 0, INTERLEAVED, VALUE_COLUMNS)
                    scale_at = block * value_scale_block + scale_place
                    store_codes(y, values, value_scales, to, scale_at, is_live, VALUE_DIM, CODES, VALUE_COLUMNS)
                else:
                    copy_columns(v, values, at, to, is_live, 0, VALUE_DIM, VALUE_COLUMNS)


def rope(
    x: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    num_heads: int,
    interleaved: bool = False,
    pdl: bool = False,
) -> None:
    """Rotates the first columns of each head of x [T, num_heads * d] in place, as Rope does.

    positions: int32 or int64 [T]. table: f32 [max_position, rotary_dim], contiguous.
    """
    head_dim, rotary = x.shape[1] // num_heads, table.shape[1]
    pairs = power_of_two(rotary // 2)
    heads = min(power_of_two(num_heads), max(1, _TILE // pairs))
    launch(
        rope_kernel, (x.shape[0], triton.cdiv(num_heads, heads)), x, positions, table, row_stride(x), num_heads,
        HEAD_DIM=head_dim, ROTARY=rotary, INTERLEAVED=interleaved, HEADS=heads, PAIRS=pairs, num_warps=4, pdl=pdl,
    )  # fmt: skip


def kv_write(
    k: torch.Tensor, v: torch.Tensor | None, slot_mapping: torch.Tensor, cache: KvTensors, pdl: bool = False
) -> None:
    """Stores k [T, G * d] and v [T, G * e] in a cache, as KvWrite does. v: None exactly if the cache has no values.

    slot_mapping: int32 [T]; a token with a negative one is not stored.
    """
    _write(None, k, v, None, None, slot_mapping, cache, 0, False, pdl)


def rope_kv_write(
    q: torch.Tensor | None,
    k: torch.Tensor,
    v: torch.Tensor | None,
    positions: torch.Tensor,
    table: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: KvTensors,
    num_heads: int,
    interleaved: bool = False,
    pdl: bool = False,
) -> None:
    """Rotates q [T, H * d] and k [T, G * d] in place, and stores k and v in the cache. q: None if H is 0.

    The other arguments are those of `rope` and `kv_write`.
    """
    _write(q, k, v, positions, table, slot_mapping, cache, num_heads, interleaved, pdl)


def _write(
    q: torch.Tensor | None,
    k: torch.Tensor,
    v: torch.Tensor | None,
    positions: torch.Tensor | None,
    table: torch.Tensor | None,
    slot_mapping: torch.Tensor,
    cache: KvTensors,
    num_heads: int,
    interleaved: bool,
    pdl: bool,
) -> None:
    num_kv_heads, block_size, head_dim = cache.keys.shape[1:]
    rotary, value_dim = 0 if table is None else table.shape[1], 0 if cache.values is None else cache.values.shape[-1]
    pairs, widest = power_of_two(max(rotary // 2, 1)), power_of_two(max(head_dim, value_dim))
    heads = min(power_of_two(max(num_heads, num_kv_heads)), max(1, _TILE // widest))
    none = k  # stands where a kernel reads nothing
    launch(
        rope_write_kernel, (k.shape[0], triton.cdiv(num_heads, heads) + 1), none if q is None else q, k,
        none if v is None else v, none if positions is None else positions, none if table is None else table,
        slot_mapping, *cache.pointers(), 0 if q is None else row_stride(q), row_stride(k),
        0 if v is None else row_stride(v), *cache.strides(), num_heads, num_kv_heads,
        HEAD_DIM=head_dim, VALUE_DIM=value_dim, ROTARY=rotary,
        INTERLEAVED=interleaved, BLOCK_SIZE=block_size, HEADS=heads, PAIRS=pairs, COLUMNS=power_of_two(head_dim),
        VALUE_COLUMNS=power_of_two(max(value_dim, 1)), **code_constants(cache), num_warps=4, pdl=pdl,
    )  # fmt: skip
