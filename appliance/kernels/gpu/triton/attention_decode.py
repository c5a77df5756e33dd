"""Attention of sequences that have one new token, over their paged keys, split into shares that are combined."""

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
from appliance.kernels.gpu.triton.launch import after_previous, launch, power_of_two, row_stride
from appliance.program.device_memory import INVARIANT_SHARES, MOST_SHARES

_MOST_HEADS = 64  # of a group that one program attends to


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """How decode attention is cut: query heads and keys of a program's step, shares of the keys (a power of two)."""

    heads: int
    keys: int
    splits: int
    num_warps: int = 4
    num_stages: int = 3


@triton.jit
def store_share(
    acc, top, total, out, parts, sums, token, sequence, head, is_head, split, num_heads, out_stride,
    VALUE_DIM: tl.constexpr, VALUES: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Stores the result [heads, VALUES] of the only share, or what combine_kernel needs of one of several."""
    column = tl.arange(0, VALUES)[None, :]
    is_live = is_head[:, None] & (column < VALUE_DIM)
    if SPLITS == 1:
        y = acc * (1.0 / tl.where(total > 0, total, 1.0))[:, None]
        at = token * out_stride + (head * VALUE_DIM)[:, None] + column
        tl.store(out + at, y.to(out.dtype.element_ty), mask=is_live)
    else:
        share = (sequence * num_heads + head).to(tl.int64) * SPLITS + split
        tl.store(parts + (share * VALUE_DIM)[:, None] + column, acc, mask=is_live)
        tl.store(sums + share * 2, top, mask=is_head)
        tl.store(sums + share * 2 + 1, total, mask=is_head)


@triton.jit(do_not_specialize=["table_stride"])
def decode_kernel(
    q, keys, values, key_scales, value_scales, tables, seq_lens, query_start, sinks, slopes, out, parts, sums, scale,
    cap, num_heads, q_stride, out_stride, key_block, key_head, key_token, value_block, value_head, value_token,
    key_scale_block, value_scale_block, table_stride,
    GROUP: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUES: tl.constexpr, PREFIX: tl.constexpr, CODES: tl.constexpr, TURN: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr,
    CAP: tl.constexpr, SINKS: tl.constexpr, SLOPES: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs: a sequence, HEADS query heads of a KV head, and a share of the keys."""
    after_previous(PDL)
    sequence, split = tl.program_id(0), tl.program_id(2)
    token = tl.load(query_start + sequence).to(tl.int64)
    if tl.load(query_start + sequence + 1) - token != 1:
        return
    tiles: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    group = tl.program_id(1) // tiles
    in_group = tl.program_id(1) % tiles * HEADS + tl.arange(0, HEADS)
    head, is_head = group * GROUP + in_group, in_group < GROUP
    length = tl.load(seq_lens + sequence)
    low = length * 0
    if WINDOW > 0:
        low = tl.maximum(low, length - WINDOW)
    if CHUNK > 0:
        low = tl.maximum(low, (length - 1) // CHUNK * CHUNK)
    start = low // KEYS * KEYS
    share = tl.cdiv(tl.cdiv(length - start, SPLITS), KEYS) * KEYS
    start += split * share
    query, query_tail = load_queries(q, token * q_stride + head * HEAD_DIM, is_head, HEAD_DIM, MAIN, TAIL, TURN)
    top, total, slope = begin(sinks, slopes, head, is_head, split == 0, SINKS, SLOPES)
    acc = tl.zeros([HEADS, VALUES], tl.float32)
    for first in tl.range(start, tl.minimum(length, start + share), KEYS, num_stages=STAGES):
        key = first + tl.arange(0, KEYS)
        is_key = (key >= low) & (key < length)
        block, place = find_keys(tables + sequence * table_stride, first, is_key, BLOCK_SIZE, KEYS)
        key_at = block * key_block + group * key_head + place * key_token
        value_at = block * value_block + group * value_head + place * value_token
        scale_place = group * BLOCK_SIZE + place
        top, total, acc = attend(
            query, query_tail, top, total, acc, keys, values, key_scales, value_scales, key_at, value_at,
            block * key_scale_block + scale_place, block * value_scale_block + scale_place, is_key, is_key[None, :],
            (key - length + 1)[None, :], slope, scale, cap,
            HEAD_DIM, MAIN, TAIL, VALUE_DIM, VALUES, PREFIX, CODES, CAP, SLOPES, True,
        )  # fmt: skip
    store_share(
        acc, top, total, out, parts, sums, token, sequence, head, is_head, split, num_heads, out_stride,
        VALUE_DIM, VALUES, SPLITS,
    )  # fmt: skip


@triton.jit
def combine_kernel(
    parts, sums, query_start, out, num_heads, out_stride,
    VALUE_DIM: tl.constexpr, VALUES: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a sequence and head, which adds its shares in their order."""
    after_previous(PDL)
    sequence, head = tl.program_id(0), tl.program_id(1)
    token = tl.load(query_start + sequence).to(tl.int64)
    if tl.load(query_start + sequence + 1) - token != 1:
        return
    share = (sequence * num_heads + head).to(tl.int64) * SPLITS + tl.arange(0, SPLITS)
    column = tl.arange(0, VALUES)[None, :]
    top, total = tl.load(sums + share * 2), tl.load(sums + share * 2 + 1)
    most = tl.max(top, 0)
    factor = tl.where(total > 0, tl.exp2(top - tl.where(most == float("-inf"), 0.0, most)), 0.0)
    part = tl.load(parts + (share * VALUE_DIM)[:, None] + column, mask=column < VALUE_DIM, other=0.0)
    whole = tl.sum(total * factor, 0)
    y = tl.sum(part * factor[:, None], 0) * (1.0 / tl.where(whole > 0, whole, 1.0))
    at = token * out_stride + head * VALUE_DIM + tl.arange(0, VALUES)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=tl.arange(0, VALUES) < VALUE_DIM)


def choose_decode(
    group: int, head_dim: int, value_dim: int, dtype: torch.dtype, arch: str,
    num_seqs: int, num_kv_heads: int, max_len: int, num_processors: int, batch_invariant: bool = False,
    values_in_keys: bool = False, has_codes: bool = False,
) -> DecodeTile:  # fmt: skip
    """Returns the tile of a model's decode attention for steps of so many sequences, each at most max_len long.

    group: query heads of a KV head. num_processors: of the device (SMs, CUs); there are shares enough for two programs
    on each. batch_invariant: as many shares for any number of sequences. values_in_keys: as in PagedAttention.
    has_codes: the cache has codes of 8 bits, which become numbers in registers.
    """
    sizes = head_constants(head_dim, value_dim, values_in_keys=values_in_keys)
    wide_codes = has_codes and sizes["MAIN"] > 256  # whose numbers fill the registers
    most = 16 if wide_codes else _MOST_HEADS if sizes["VALUES"] <= 256 else _MOST_HEADS // 2
    heads = min(most, max(16, power_of_two(group)))
    values = 0 if sizes["PREFIX"] else sizes["VALUES"]
    row_bytes = (sizes["MAIN"] + sizes["TAIL"] + values) * dtype.itemsize
    free = architecture(arch).shared_bytes - heads * (sizes["MAIN"] + sizes["TAIL"]) * dtype.itemsize
    keys = next((keys for keys in ((32,) if wide_codes else (64, 32)) if 2 * keys * row_bytes <= free), 16)
    programs = num_seqs * num_kv_heads * triton.cdiv(group, heads)
    wanted = INVARIANT_SHARES if batch_invariant else max(1, round(2 * num_processors / programs))
    splits = min(power_of_two(wanted), MOST_SHARES, power_of_two(triton.cdiv(max_len, keys)))
    num_warps = 256 // architecture(arch).warp_size if wide_codes else 4 if sizes["VALUES"] <= 128 else 8
    return DecodeTile(heads, keys, splits, num_warps, 3 if 2 * keys * row_bytes <= free else 1)


def decode_workspace(num_seqs: int, num_heads: int, value_dim: int, splits: int) -> int:
    """Returns how many f32 numbers `decode_attention` needs beside its arguments: none for one share."""
    return 0 if splits == 1 else num_seqs * num_heads * splits * (value_dim + 2)


def decode_attention(
    q: torch.Tensor,
    cache: KvTensors,
    tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start: torch.Tensor,
    out: torch.Tensor,
    options: AttentionOptions,
    tile: DecodeTile,
    workspace: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Attention of the sequences that have exactly one new token; rows of others are left alone.

    q: a span [T, H * d]. tables: int32 [S, max_blocks]. seq_lens: int32 [S], with the new token; where it is 0, the row
    becomes zeros. query_start: int32 [S + 1]. out: a span [T, H * e]. workspace: f32 [decode_workspace(...)].
    """
    num_kv_heads, block_size, head_dim = cache.keys.shape[1:]
    num_seqs, num_heads = seq_lens.shape[0], options.num_heads
    value_dim = out.shape[1] // num_heads
    group = num_heads // num_kv_heads
    shares = num_seqs * num_heads * tile.splits
    parts = sums = seq_lens  # not read
    if tile.splits > 1:
        if workspace is None or workspace.numel() < shares * (value_dim + 2):
            raise ValueError(f"{tile.splits} shares need a workspace of {shares * (value_dim + 2)} numbers")
        parts, sums = workspace[: shares * value_dim], workspace[shares * value_dim :]
    sizes = head_constants(head_dim, value_dim, values_in_keys=cache.values is None)
    scale, cap = options.numbers()
    launch(
        decode_kernel, (num_seqs, num_kv_heads * triton.cdiv(group, tile.heads), tile.splits), q, *cache.pointers(),
        tables, seq_lens, query_start, seq_lens if options.sinks is None else options.sinks,
        seq_lens if options.slopes is None else options.slopes, out, parts, sums, scale, cap, num_heads,
        row_stride(q), row_stride(out), *cache.strides(), row_stride(tables),
        **sizes, **code_constants(cache), **options.constants(), GROUP=group, HEADS=tile.heads, BLOCK_SIZE=block_size,
        KEYS=tile.keys, SPLITS=tile.splits, STAGES=tile.num_stages, num_warps=tile.num_warps, pdl=pdl,
    )  # fmt: skip
    if tile.splits > 1:
        launch(
            combine_kernel, (num_seqs, num_heads), parts, sums, query_start, out, num_heads, row_stride(out),
            VALUE_DIM=value_dim, VALUES=sizes["VALUES"], SPLITS=tile.splits, num_warps=2, pdl=pdl,
        )  # fmt: skip
