"""Attention of chunks and whole prompts over paged keys, which hold the new tokens already."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.architectures import architecture
from appliance.kernels.gpu.triton.attention import (
    AttentionOptions,
    attend,
    begin,
    find_keys,
    head_constants,
    load_queries,
)
from appliance.kernels.gpu.triton.kv_codes import KvTensors, code_constants
from appliance.kernels.gpu.triton.launch import after_previous, launch, row_stride


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """The new tokens and the keys of a program's step. Levels of dependent loads count as stages: five are three
    buffers, and three are two."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


@triton.jit
def attend_range(
    state, low, high, first_key, row_at, length, table, keys, values, key_scales, value_scales, query, query_tail,
    slope, scale, cap, key_block, key_token, value_block, value_token, key_scale_block, value_scale_block,
    KEYS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUES: tl.constexpr, PREFIX: tl.constexpr, CODES: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, CAP: tl.constexpr, SLOPES: tl.constexpr, MASKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Attends to keys low <= k < high, of which `low` is a multiple of KEYS; without MASKED every row sees them all.

    state: largest scores, sums, weighted values. row_at [rows]: the positions of the rows. first_key: the first that
    any row sees.
    """
    top, total, acc = state
    for first in tl.range(low, high, KEYS, num_stages=STAGES):
        key = first + tl.arange(0, KEYS)
        is_key = (key >= first_key) & (key < length)
        distance = key[None, :] - row_at[:, None]
        visible = (distance <= 0) & is_key[None, :]
        if WINDOW > 0:
            visible &= distance > -WINDOW
        if CHUNK > 0:
            visible &= key[None, :] >= (row_at // CHUNK * CHUNK)[:, None]
        block, place = find_keys(table, first, is_key, BLOCK_SIZE, KEYS)
        key_at = block * key_block + place * key_token
        value_at = block * value_block + place * value_token
        top, total, acc = attend(
            query, query_tail, top, total, acc, keys, values, key_scales, value_scales, key_at, value_at,
            block * key_scale_block + place, block * value_scale_block + place, is_key, visible, distance, slope,
            scale, cap, HEAD_DIM, MAIN, TAIL, VALUE_DIM, VALUES, PREFIX, CODES, CAP, SLOPES, MASKED,
        )  # fmt: skip
    return top, total, acc


@triton.jit
def ranges(first_row, last_row, length, KEYS: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """Returns the first key that rows at these positions see, and bounds a <= b <= c <= d, multiples of KEYS but for
    the last: some rows see keys from a, all rows see all keys from b to c, and none sees any from d."""
    first_key = first_row * 0
    for_all = first_row * 0
    if WINDOW > 0:
        first_key = tl.maximum(first_key, first_row - WINDOW + 1)
        for_all = tl.maximum(for_all, last_row - WINDOW + 1)
    if CHUNK > 0:
        first_key = tl.maximum(first_key, first_row // CHUNK * CHUNK)
        for_all = tl.maximum(for_all, last_row // CHUNK * CHUNK)
    end = tl.minimum(length, last_row + 1)
    until = tl.maximum(first_row + 1, 0) // KEYS * KEYS
    since = tl.minimum(tl.cdiv(for_all, KEYS) * KEYS, tl.cdiv(end, KEYS) * KEYS)
    return first_key, first_key // KEYS * KEYS, since, tl.maximum(until, since), end


@triton.jit(do_not_specialize=["table_stride"])
def prefill_kernel(
    q, keys, values, key_scales, value_scales, tables, tiles, query_start, seq_lens, sinks, slopes, out, scale, cap,
    q_stride, out_stride, key_block, key_head, key_token, value_block, value_head, value_token, key_scale_block,
    value_scale_block, table_stride,
    GROUP: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    MAIN: tl.constexpr, TAIL: tl.constexpr, VALUE_DIM: tl.constexpr, VALUES: tl.constexpr, PREFIX: tl.constexpr,
    CODES: tl.constexpr, TURN: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, CAP: tl.constexpr,
    SINKS: tl.constexpr, SLOPES: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs: a head, and ROWS new tokens of a sequence."""
    after_previous(PDL)
    head = tl.program_id(0)
    sequence = tl.load(tiles + tl.program_id(1) * 2)
    if sequence < 0:
        return
    row = tl.load(tiles + tl.program_id(1) * 2 + 1) + tl.arange(0, ROWS)
    begins = tl.load(query_start + sequence)
    count = tl.load(query_start + sequence + 1) - begins
    length = tl.load(seq_lens + sequence)
    is_row, row_at = row < count, length - count + row
    first_row = tl.min(row_at, 0)
    first_key, a, b, c, d = ranges(
        first_row, tl.minimum(first_row + ROWS, length) - 1, length, KEYS, WINDOW, CHUNK
    )  # fmt: skip
    token = (begins + row).to(tl.int64)
    query, query_tail = load_queries(q, token * q_stride + head * HEAD_DIM, is_row, HEAD_DIM, MAIN, TAIL, TURN)
    top, total, slope = begin(sinks, slopes, head + row * 0, is_row, is_row, SINKS, SLOPES)
    state = (top, total, tl.zeros([ROWS, VALUES], tl.float32))
    group = (head // GROUP).to(tl.int64)
    k, k_scales = keys + group * key_head, key_scales + group * BLOCK_SIZE
    v, v_scales = values + group * value_head, value_scales + group * BLOCK_SIZE
    table = tables + sequence * table_stride
    for part in tl.static_range(0 if WINDOW + CHUNK > 0 else 1, 3):
        low, high = (a, b) if part == 0 else ((b, c) if part == 1 else (c, d))
        state = attend_range(
            state, low, high, first_key, row_at, length, table, k, v, k_scales, v_scales, query, query_tail, slope,
            scale, cap, key_block, key_token, value_block, value_token, key_scale_block, value_scale_block,
            KEYS, BLOCK_SIZE, HEAD_DIM, MAIN, TAIL, VALUE_DIM, VALUES, PREFIX, CODES, WINDOW, CHUNK,
            CAP, SLOPES, part != 1, STAGES if part == 1 else 1,
        )  # fmt: skip
    top, total, acc = state
    y = acc * (1.0 / tl.where(total > 0, total, 1.0))[:, None]
    column = tl.arange(0, VALUES)[None, :]
    at = (token * out_stride + head * VALUE_DIM)[:, None] + column
    tl.store(out + at, y.to(out.dtype.element_ty), mask=is_row[:, None] & (column < VALUE_DIM))


def choose_prefill(
    head_dim: int, value_dim: int, block_size: int, dtype: torch.dtype, arch: str,
    *, values_in_keys: bool = False, has_codes: bool = False,
) -> PrefillTile:  # fmt: skip
    """Returns the tile of a model's prefill attention, which no number of tokens changes.

    The last arguments are those of `choose_decode`.
    """
    sizes = head_constants(head_dim, value_dim, values_in_keys=values_in_keys)
    width = sizes["MAIN"] + sizes["TAIL"]
    rows = 64 if width <= 320 and dtype.itemsize == 2 else 32
    free = architecture(arch).shared_bytes - rows * width * dtype.itemsize
    row_bytes = (width + (0 if sizes["PREFIX"] else sizes["VALUES"])) * dtype.itemsize
    wide_codes = has_codes and width > 256  # whose numbers fill the registers
    is_large = width > 128 or sizes["VALUES"] > 128
    most = 32 if is_large or dtype.itemsize == 4 else 64
    most = 16 if wide_codes else most
    keys = next((keys for keys in (64, 32) if keys <= most and 2 * keys * row_bytes <= free), 16)
    buffers = min(1 if wide_codes else 3, max(1, free // (keys * row_bytes)))
    levels = 2 if keys <= block_size else 1
    num_warps = 256 // architecture(arch).warp_size if has_codes else 8 if is_large else 4
    return PrefillTile(rows, keys, num_warps, {3: 1 + 2 * levels, 2: 1 + levels, 1: 1}[buffers])


def prefill_attention(
    q: torch.Tensor,
    cache: KvTensors,
    tables: torch.Tensor,
    tiles: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    options: AttentionOptions,
    tile: PrefillTile,
    batch_invariant: bool = False,
    pdl: bool = False,
) -> None:
    """Causal attention of the new tokens that `tiles` (int32 [tiles, 2], as prefill_tiles gives them) name.

    The other arguments are those of `decode_attention`. Rows of a sequence of length 0 become zeros. batch_invariant:
    a row rounds alike in every chunk, for which products and sums are not fused.
    """
    num_kv_heads, block_size, head_dim = cache.keys.shape[1:]
    scale, cap = options.numbers()
    sizes = head_constants(head_dim, out.shape[1] // options.num_heads, values_in_keys=cache.values is None)
    launch(
        prefill_kernel, (options.num_heads, tiles.shape[0]), q, *cache.pointers(), tables, tiles,
        query_start, seq_lens,
        seq_lens if options.sinks is None else options.sinks, seq_lens if options.slopes is None else options.slopes,
        out, scale, cap, row_stride(q), row_stride(out), *cache.strides(), row_stride(tables), **sizes,
        **code_constants(cache), **options.constants(),
        GROUP=options.num_heads // num_kv_heads, ROWS=tile.rows, KEYS=tile.keys, BLOCK_SIZE=block_size,
        STAGES=tile.num_stages, num_warps=tile.num_warps, enable_fp_fusion=not batch_invariant, pdl=pdl,
    )  # fmt: skip
