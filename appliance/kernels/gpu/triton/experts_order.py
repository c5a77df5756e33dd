"""Tokens in the order of their experts, so that the rows of one expert are multiplied together.

A pair is a token and one of its experts: number token * k + place. Positions are rows of the sorted order: each expert
has a multiple of a tile's rows, the last of which may be empty.
"""

from typing import Final

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.launch import after_previous, launch, power_of_two

NO_PAIR: Final = -1
NO_EXPERT: Final = -1
_BLOCK = 1024


@triton.jit
def count_pairs_kernel(experts, counts, num_pairs, first_expert, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """One program an expert."""
    expert = tl.program_id(0)
    wanted = first_expert + expert
    after_previous(PDL)
    found = tl.zeros([BLOCK], tl.int32)
    for first in tl.range(0, num_pairs, BLOCK):
        pair = first + tl.arange(0, BLOCK)
        found += (tl.load(experts + pair, mask=pair < num_pairs, other=-1) == wanted).to(tl.int32)
    tl.store(counts + expert, tl.sum(found, 0))


@triton.jit
def order_pairs_kernel(
    experts, counts, order, places, tile_experts, num_pairs, num_experts, num_tiles, first_expert,
    ROWS: tl.constexpr, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program an expert, and one more for the tiles behind the last expert's, and for pairs of other ranks."""
    expert = tl.program_id(0)
    after_previous(PDL)
    each = tl.arange(0, EXPERTS)
    count = tl.load(counts + each, mask=each < num_experts, other=0)
    own = tl.sum(tl.where(each == expert, count, 0), 0)
    start = tl.sum(tl.where(each < expert, tl.cdiv(count, ROWS), 0), 0)
    end = start + tl.cdiv(own, ROWS)
    if expert == num_experts:
        end = num_tiles
    for tile in tl.range(start, end):
        tl.store(tile_experts + tile, tl.where(expert < num_experts, expert, -1))
        at = tile * ROWS + tl.arange(0, ROWS)
        tl.store(order + at, tl.full([ROWS], -1, tl.int32), mask=at >= start * ROWS + own)
    position = start * ROWS
    for first in tl.range(0, num_pairs, BLOCK):
        pair = first + tl.arange(0, BLOCK)
        chosen = tl.load(experts + pair, mask=pair < num_pairs, other=-1) - first_expert
        if expert < num_experts:
            is_own = (chosen == expert) & (pair < num_pairs)
            at = position + tl.cumsum(is_own.to(tl.int32), 0) - 1
            tl.store(order + at, pair, mask=is_own)
            tl.store(places + pair, at, mask=is_own)
            position += tl.sum(is_own.to(tl.int32), 0)
        else:
            is_other = (chosen < 0) | (chosen >= num_experts)
            tl.store(places + pair, tl.full([BLOCK], -1, tl.int32), mask=is_other & (pair < num_pairs))


def num_expert_tiles(num_pairs: int, num_experts: int, tile_rows: int) -> int:
    """Returns the most tiles that so many pairs can need."""
    return min(num_pairs, num_pairs // tile_rows + num_experts)


def order_by_expert(
    experts: torch.Tensor,
    order: torch.Tensor,
    places: torch.Tensor,
    tile_experts: torch.Tensor,
    counts: torch.Tensor,
    tile_rows: int,
    pdl: bool = False,
    first_expert: int = 0,
) -> None:
    """Orders pairs by their expert, and those of an expert by their number. Experts are those from first_expert on, as
    many as there are counts; pairs of others have no position.

    experts: int32 [T, k], contiguous. All others are written, int32: order [tiles * tile_rows] the pair of each
    position, or NO_PAIR; places [T * k] the position of each pair, or NO_PAIR; tile_experts [tiles] the expert of each
    tile, from first_expert on, or NO_EXPERT; counts [E] the pairs of each expert. tiles: num_expert_tiles(...) or more.
    """
    num_experts, num_pairs = counts.shape[0], experts.numel()
    launch(
        count_pairs_kernel, (num_experts,), experts, counts, num_pairs, first_expert, BLOCK=_BLOCK, num_warps=4, pdl=pdl
    )
    launch(
        order_pairs_kernel, (num_experts + 1,), experts, counts, order, places, tile_experts, num_pairs, num_experts,
        tile_experts.shape[0], first_expert, ROWS=tile_rows, EXPERTS=power_of_two(num_experts), BLOCK=_BLOCK,
        num_warps=4, pdl=pdl,
    )  # fmt: skip
