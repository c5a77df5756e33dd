"""What decode and prefill attention share: the options of operator PagedAttention, and a step over one tile of keys.

Widths: H query heads, G KV heads, d columns of a key, e of a value. Scores are kept in powers of two.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.kv_codes import numbers_of, turned_queries
from appliance.kernels.gpu.triton.launch import power_of_two

LOG2_E = math.log2(math.e)
_LEAST = 16  # columns of the narrowest operand of a matrix product


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """The fields of PagedAttention of the same names. sinks: f32 [H]. slopes: f32 [H], a tensor here."""

    num_heads: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    chunk: int | None = None
    sinks: torch.Tensor | None = None
    slopes: torch.Tensor | None = None

    def numbers(self) -> tuple[float, float]:
        """Returns the factor of a product of query and key, and that of a capped score.

        A score is factor * q.k, or with a cap: cap * tanh(x) = cap * (1 - 2 / (2^y + 1)), y = 2 * x * log2(e).
        """
        scale = self.scale * LOG2_E
        return (scale, 0.0) if self.soft_cap is None else (2 * scale / self.soft_cap, self.soft_cap * LOG2_E)

    def constants(self) -> dict[str, Any]:
        """Returns the constants of both kernels that say what a query sees."""
        return {
            "WINDOW": self.window or 0,
            "CHUNK": self.chunk or 0,
            "CAP": self.soft_cap is not None,
            "SINKS": self.sinks is not None,
            "SLOPES": self.slopes is not None,
        }


def head_constants(head_dim: int, value_dim: int, *, values_in_keys: bool = False) -> dict[str, int]:
    """Returns the constants of the widths of heads.

    A key is cut into MAIN columns, a power of two, and at most TAIL more, so that 192 or 576 columns are not padded to
    256 or 1024. VALUES: the columns of a value, padded. PREFIX: values are the MAIN columns of keys.
    """
    main = max(_LEAST, power_of_two(head_dim + 1) // 2)
    rest = max(0, head_dim - main)
    return {
        "HEAD_DIM": head_dim,
        "MAIN": main,
        "TAIL": max(_LEAST, power_of_two(rest)) if rest else 0,
        "VALUE_DIM": value_dim,
        "VALUES": max(_LEAST, power_of_two(value_dim)),
        "PREFIX": values_in_keys and value_dim == main,
    }


@triton.jit
def load_rows(
    base, at, is_row, FIRST: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """Returns columns FIRST.. of rows at the offsets `at`: [rows, BLOCK], zero beyond WIDTH, and where not is_row."""
    column = tl.arange(0, BLOCK)
    pointers = base + at[:, None] + (FIRST + column)[None, :]
    if MASKED and WIDTH < BLOCK:
        tile = tl.load(pointers, mask=is_row[:, None] & (column < WIDTH)[None, :], other=0)
    elif MASKED:
        tile = tl.load(pointers, mask=is_row[:, None], other=0)
    elif WIDTH < BLOCK:
        tile = tl.load(pointers, mask=(column < WIDTH)[None, :], other=0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def load_queries(q, at, is_row, HEAD_DIM: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr, TURN: tl.constexpr):
    """Returns the first MAIN columns of queries, and the others; of no others, the first again.

    With TURN they are turned as keys of int8 are, which leaves their products what they were.
    """
    main = load_rows(q, at, is_row, 0, HEAD_DIM, MAIN, True)
    if TURN > 0:
        main = turned_queries(main, TURN)
    tail = main
    if TAIL > 0:
        tail = load_rows(q, at, is_row, MAIN, HEAD_DIM - MAIN, TAIL, True)
        if TURN > 0:
            tail = turned_queries(tail, TURN)
    return main, tail


@triton.jit
def begin(sinks, slopes, head, is_row, has_sink, SINKS: tl.constexpr, SLOPES: tl.constexpr):
    """Returns the largest scores and sums before any key, and the slopes of rows that are of the heads [rows]."""
    log2_e: tl.constexpr = 1.4426950408889634
    top = tl.where(is_row, float("-inf"), float("-inf"))
    total = tl.where(is_row, 0.0, 0.0)
    if SINKS:  # one more key, whose value is zero
        sink = tl.load(sinks + head, mask=is_row, other=0.0).to(tl.float32) * log2_e
        top = tl.where(has_sink, sink, top)
        total = tl.where(has_sink, 1.0, total)
    slope = total
    if SLOPES:
        slope = tl.load(slopes + head, mask=is_row, other=0.0).to(tl.float32) * log2_e
    return top, total, slope


@triton.jit
def find_keys(table, start, is_key, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr):
    """Returns the blocks and the places in them of keys start.., of which `start` is a multiple of KEYS and cached."""
    key = start + tl.arange(0, KEYS)
    if BLOCK_SIZE % KEYS == 0:  # they lie in one block, together
        block = tl.load(table + start // BLOCK_SIZE).to(tl.int64)
    else:
        block = tl.load(table + key // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
    return block, key % BLOCK_SIZE


@triton.jit
def load_scales(scales, at, is_key, CODES: tl.constexpr, MASKED: tl.constexpr):
    """Returns the scales of keys at the offsets `at`, f32 [keys]; of floats, which have none, ones."""
    if CODES == 0:
        scale = tl.where(is_key, 1.0, 1.0)
    elif MASKED:
        scale = tl.load(scales + at, mask=is_key, other=0.0)
    else:
        scale = tl.load(scales + at)
    return scale


@triton.jit
def load_numbers(
    base, at, is_row, scale, like, FIRST: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CODES: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Returns what `load_rows` does, codes as the numbers that they are, in the type of `like`."""
    tile = load_rows(base, at, is_row, FIRST, WIDTH, BLOCK, MASKED)
    if CODES > 0:
        tile = numbers_of(tile, scale, CODES)
    return tile.to(like.dtype)


@triton.jit
def attend(
    q, q_tail, top, total, acc, keys, values, key_scales, value_scales, key_at, value_at, key_scale_at, value_scale_at,
    is_key, visible, distance, slope, scale, cap,
    HEAD_DIM: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr, VALUE_DIM: tl.constexpr, VALUES: tl.constexpr,
    PREFIX: tl.constexpr, CODES: tl.constexpr, CAP: tl.constexpr, SLOPES: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One tile of keys of the softmax: returns the largest scores, the sums, and the weighted sums of values.

    q [rows, MAIN] and q_tail [rows, TAIL]; top, total [rows]; acc [rows, VALUES]; is_key and what ends in _at [keys];
    visible, distance [rows, keys]: whether a row sees a key, and its position minus the row's; slope [rows].
    """
    key_scale = load_scales(key_scales, key_scale_at, is_key, CODES, MASKED)
    k = load_numbers(keys, key_at, is_key, key_scale, q, 0, HEAD_DIM, MAIN, CODES, MASKED)
    score = tl.dot(q, tl.trans(k), input_precision="ieee")
    if TAIL > 0:
        k_tail = load_numbers(keys, key_at, is_key, key_scale, q, MAIN, HEAD_DIM - MAIN, TAIL, CODES, MASKED)
        score = tl.dot(q_tail, tl.trans(k_tail), score, input_precision="ieee")
    score *= scale
    if CAP:
        score = cap * (1.0 - 2.0 / (tl.exp2(score) + 1.0))
    if SLOPES:
        score += slope[:, None] * distance.to(tl.float32)
    if MASKED:
        score = tl.where(visible, score, float("-inf"))
    new_top = tl.maximum(top, tl.max(score, 1))
    base = new_top
    if MASKED:  # a row that saw nothing yet has no largest score
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
    weight = tl.exp2(score - base[:, None])
    fade = tl.exp2(top - base)
    if PREFIX:
        v = k
    else:
        value_scale = load_scales(value_scales, value_scale_at, is_key, CODES, MASKED)
        v = load_numbers(values, value_at, is_key, value_scale, q, 0, VALUE_DIM, VALUES, CODES, MASKED)
    acc = tl.dot(weight.to(q.dtype), v, acc * fade[:, None], input_precision="ieee")
    return new_top, total * fade + tl.sum(weight, 1), acc
