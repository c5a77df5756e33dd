"""Draws of rows of logits by temperature, top-k, top-p, min-p and numbered random numbers, a row spread over programs.

The semantics, and the draws, are those of kernels/sampling.py after its masks, biases and penalties. Logits are ordered
by keys: integers of 32 bits that compare as the scaled logits do. The last kept key is searched digit by digit, first
by count (top-k), then by mass (top-p); each step counts one digit, and the next one chooses it. Masses are f64.
"""

from dataclasses import dataclass
from typing import Final, Self

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.launch import after_previous, launch, row_stride
from appliance.program.device_memory import DRAW_CHUNKS, DRAW_DIGITS

_STEPS: Final = 8  # digits of a key
_BLOCK: Final = 256


@dataclass(frozen=True, slots=True)
class SamplerWorkspace:
    """What the kernels of `sample` pass on, with C chunks of a row. top, sums [R, C]; counts, masses [2, R, C, digits]:
    of even and of odd steps; keys, rest [2, R]: the digits chosen so far, and what is to be kept; limits [R, 5]."""

    top: torch.Tensor
    counts: torch.Tensor
    masses: torch.Tensor
    keys: torch.Tensor
    rest: torch.Tensor
    limits: torch.Tensor
    sums: torch.Tensor

    @classmethod
    def allocate(cls, num_rows: int, device: torch.device | str, chunks: int = DRAW_CHUNKS) -> Self:
        """Allocates for exactly so many rows, and programs of a row, a power of two."""

        def of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.empty(*shape, dtype=dtype, device=device)

        digits = 2, num_rows, chunks, DRAW_DIGITS
        return cls(
            of(torch.float32, num_rows, chunks), of(torch.int32, *digits), of(torch.float64, *digits),
            of(torch.int64, 2, num_rows), of(torch.float64, 2, num_rows), of(torch.int64, num_rows, 5),
            of(torch.float64, num_rows, chunks),
        )  # fmt: skip


@triton.jit
def scaled(logits, temperature, column, end):
    """Returns logits over the temperature, f32; with temperature 0 as they are, and minus infinity beyond the end."""
    x = tl.load(logits + column, mask=column < end, other=float("-inf")).to(tl.float32)
    if temperature > 0:
        x = tl.div_rn(x, temperature)
    return tl.where(x == 0, 0.0, x)  # minus zero is as large as zero


@triton.jit
def key_of(x):
    """Returns integers of 32 bits, as int64, in the order of f32 numbers."""
    bits = x.to(tl.int32, bitcast=True)
    unsigned = bits.to(tl.int64) & 0xFFFFFFFF
    return tl.where(bits < 0, 0xFFFFFFFF - unsigned, unsigned + 0x80000000)


@triton.jit
def number_of(key):
    """Returns the f64 number of a key."""
    unsigned = tl.where(key >= 0x80000000, key - 0x80000000, 0xFFFFFFFF - key)
    return unsigned.to(tl.int32).to(tl.float32, bitcast=True).to(tl.float64)


@triton.jit
def largest(tops, row, CHUNKS: tl.constexpr):
    """Returns the largest scaled logit of a row, and whether a token can be chosen: no NaN, not all minus infinity."""
    top = tl.load(tops + row * CHUNKS + tl.arange(0, CHUNKS))
    is_nan = top != top
    most = tl.max(tl.where(is_nan, float("-inf"), top), 0)
    return most, (tl.sum(is_nan.to(tl.int32), 0) == 0) & (most > float("-inf"))


@triton.jit
def scan_kernel(
    logits, temperatures, tops, stride, width, share, CHUNKS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Programs: a row and a chunk. Stores its largest scaled logit, or NaN if there is one."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    after_previous(PDL)
    temperature = tl.load(temperatures + row)
    end = tl.minimum(width, (chunk + 1) * share)
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    nans = tl.zeros([BLOCK], tl.int32)
    for first in tl.range(chunk * share, end, BLOCK):
        x = scaled(logits + row * stride, temperature, first + tl.arange(0, BLOCK), end)
        nans += (x != x).to(tl.int32)
        most = tl.maximum(most, tl.where(x == x, x, float("-inf")))
    top = tl.where(tl.sum(nans, 0) > 0, float("nan"), tl.max(most, 0))
    tl.store(tops + row * CHUNKS + chunk, top)


@triton.jit
def next_digit(
    counts, masses, keys, rest, share, row, rows, parity, IS_WHOLE: tl.constexpr, MASS: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """Returns the digits of the last kept key, with the one that a step has counted, and what is to be kept of it.

    It is the largest digit at which all kept so far are enough; where none is, the lowest that there is. share: of the
    mass, 1 for all. IS_WHOLE: what the step before has counted is all the mass that a search by mass is about.
    """
    digit = tl.arange(0, 16)
    at = ((parity * rows + row) * CHUNKS + tl.arange(0, CHUNKS)[:, None]) * 16 + digit[None, :]
    count = tl.sum(tl.load(counts + at), 0)
    key, left = tl.load(keys + parity * rows + row), tl.load(rest + parity * rows + row)
    own = count.to(tl.float64)
    if MASS:
        own = tl.sum(tl.load(masses + at), 0)
        if IS_WHOLE:
            left = tl.where(share < 1, share.to(tl.float64) * tl.sum(own, 0), float("inf"))
    above = tl.sum(tl.where(digit[None, :] > digit[:, None], own[None, :], 0.0), 1)
    best = tl.max(tl.where((above + own >= left) & (count > 0), digit, -1), 0)
    chosen = tl.where(best >= 0, best, tl.min(tl.where(count > 0, digit, 15), 0))
    return key * 16 + chosen, left - tl.sum(tl.where(digit == chosen, above, 0.0), 0)


@triton.jit
def ties(counts, key, row, rows, before, CHUNKS: tl.constexpr):
    """Returns how often the last counted key occurs in the chunks before one."""
    chunk = tl.arange(0, CHUNKS)
    count = tl.load(counts + ((rows + row) * CHUNKS + chunk) * 16 + key % 16)
    return tl.sum(tl.where(chunk < before, count, 0), 0)


@triton.jit
def count_limit(counts, masses, keys, rest, row, rows, COUNTED: tl.constexpr, CHUNKS: tl.constexpr):
    """Returns the last key that top-k keeps, how often, and how often it is there; a key below all without top-k."""
    key = row * 0 - 1
    kept = row * 0 + 1
    there = kept
    if COUNTED:
        key, left = next_digit(counts, masses, keys, rest, 1.0, row, rows, 1, False, False, CHUNKS)
        kept = left.to(tl.int64)
        there = ties(counts, key, row, rows, CHUNKS, CHUNKS).to(tl.int64)
    return key, kept, there


@triton.jit
def count_digit(
    logits, temperature, start, end, most, key, low, tie, tie_share, step, MASS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Returns how many logits start <= i < end have `key` as their first digits, by the next digit, and their masses.

    With MASS only keys from `low` count, and the mass of the key `tie` is multiplied by tie_share.
    """
    digit = tl.arange(0, 16)[None, :]
    number = tl.zeros([BLOCK, 16], tl.int32)
    mass = tl.zeros([BLOCK, 16], tl.float64)
    for first in tl.range(start, end, BLOCK):
        column = first + tl.arange(0, BLOCK)
        x = scaled(logits, temperature, column, end)
        own = key_of(x)
        is_counted = (column < end) & ((own >> (32 - 4 * step)) == key)
        if MASS:
            is_counted &= own >= low
        here = is_counted[:, None] & (((own >> (28 - 4 * step)) & 15)[:, None] == digit)
        number += here.to(tl.int32)
        if MASS:
            weight = tl.exp(x.to(tl.float64) - most.to(tl.float64)) * tl.where(own == tie, tie_share, 1.0)
            mass += tl.where(here, weight[:, None], 0.0)
    return tl.sum(number, 0), tl.sum(mass, 0)


@triton.jit(do_not_specialize=["rows", "step"])
def search_kernel(
    logits, temperatures, top_ks, top_ps, min_logs, tops, counts, masses, keys, rest, limits, stride, width, share,
    rows, step, PHASE: tl.constexpr, MASS: tl.constexpr, COUNTED: tl.constexpr, CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs: a row and a chunk. Chooses the digit that the step before has counted, and counts the next.

    PHASE: the step, 2 for all later ones. limits: of top-k, its last key, how often it is kept, and how often it is
    there, after a search by count (COUNTED).
    """
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    after_previous(PDL)
    most, is_well = largest(tops, row, CHUNKS)
    if is_well == 0:
        return
    temperature = tl.load(temperatures + row)
    tie, kept, there, low, key = row * 0, row * 0 + 1, row * 0 + 1, row * 0, row * 0
    left = tl.zeros([], tl.float64)
    if MASS:
        if PHASE == 0:
            tie, kept, there = count_limit(counts, masses, keys, rest, row, rows, COUNTED, CHUNKS)
            if chunk == 0:
                tl.store(limits + row * 5, tie)
                tl.store(limits + row * 5 + 1, kept)
                tl.store(limits + row * 5 + 2, there)
        else:
            tie, kept = tl.load(limits + row * 5), tl.load(limits + row * 5 + 1)
            there = tl.load(limits + row * 5 + 2)
        low = tl.maximum(tie, key_of(most + tl.load(min_logs + row)))
    if PHASE > 0:
        key, left = next_digit(
            counts, masses, keys, rest, tl.load(top_ps + row), row, rows, (step + 1) % 2, PHASE == 1, MASS, CHUNKS
        )  # fmt: skip
    elif not MASS:
        wanted = tl.load(top_ks + row)
        wanted = tl.where((wanted > 0) & (wanted < width), wanted, width)
        left = tl.where(temperature > 0, wanted, 1).to(tl.float64)
    number, mass = count_digit(
        logits + row * stride, temperature, chunk * share, tl.minimum(width, (chunk + 1) * share), most, key, low, tie,
        kept.to(tl.float64) / there.to(tl.float64), step, MASS, BLOCK,
    )  # fmt: skip
    to = ((step % 2 * rows + row) * CHUNKS + chunk) * 16 + tl.arange(0, 16)
    tl.store(counts + to, number)
    if MASS:
        tl.store(masses + to, mass)
    if chunk == 0:
        tl.store(keys + step % 2 * rows + row, key)
        tl.store(rest + step % 2 * rows + row, left)


@triton.jit
def kept_masses(logits, temperature, column, end, most, key, kept, low, before):
    """Returns the masses of logits, zero for those that are not kept, and how many are of the last kept key.

    That key is kept `kept` times, and occurs `before` times in columns before.
    """
    x = scaled(logits, temperature, column, end)
    own = key_of(x)
    is_tie = (own == key) & (column < end)
    rank = before + tl.cumsum(is_tie.to(tl.int64), 0) - 1
    is_kept = ((own > key) | (is_tie & (rank < kept))) & (own >= low) & (column < end)
    return tl.where(is_kept, tl.exp(x.to(tl.float64) - most.to(tl.float64)), 0.0), tl.sum(is_tie.to(tl.int64), 0)


@triton.jit(do_not_specialize=["rows"])
def sum_kernel(
    logits, temperatures, top_ps, min_logs, tops, counts, masses, keys, rest, limits, sums, stride, width, share, rows,
    MASS: tl.constexpr, COUNTED: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs: a row and a chunk. Stores the last kept key, how often it is kept, and the kept mass of the chunk."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    after_previous(PDL)
    most, is_well = largest(tops, row, CHUNKS)
    if is_well == 0:
        return
    if MASS:
        key, left = next_digit(counts, masses, keys, rest, 1.0, row, rows, 1, False, True, CHUNKS)
        there = ties(counts, key, row, rows, CHUNKS, CHUNKS).to(tl.float64)
        of_key = tl.exp(number_of(key) - most.to(tl.float64))
        needed = tl.where((of_key > 0) & (left < float("inf")), tl.ceil(left / of_key), there)
        kept = tl.maximum(tl.minimum(needed, there), 1.0).to(tl.int64)
        kept = tl.where(key == tl.load(limits + row * 5), tl.minimum(kept, tl.load(limits + row * 5 + 1)), kept)
    else:
        key, kept, _ = count_limit(counts, masses, keys, rest, row, rows, COUNTED, CHUNKS)
    if chunk == 0:
        tl.store(limits + row * 5 + 3, key)
        tl.store(limits + row * 5 + 4, kept)
    before = row * 0
    if MASS or COUNTED:
        before += ties(counts, key, row, rows, chunk, CHUNKS)
    low = key_of(most + tl.load(min_logs + row))
    temperature = tl.load(temperatures + row)
    end = tl.minimum(width, (chunk + 1) * share)
    total = tl.zeros([BLOCK], tl.float64)
    for first in tl.range(chunk * share, end, BLOCK):
        mass, found = kept_masses(
            logits + row * stride, temperature, first + tl.arange(0, BLOCK), end, most, key, kept, low, before
        )  # fmt: skip
        total += mass
        before += found
    tl.store(sums + row * CHUNKS + chunk, tl.sum(total, 0))


@triton.jit
def uniform(seed, position):
    """Returns the f64 in [0, 1) that Philox4x32-10 numbers by key and counter."""
    low, high = (position & 0xFFFFFFFF).to(tl.uint32), ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    first, second, _, _ = tl.philox(seed, low, high, low * 0, low * 0)
    bits = (first.to(tl.int64) << 21) | (second.to(tl.int64) >> 11)
    return bits.to(tl.float64) * 1.1102230246251565e-16


@triton.jit(do_not_specialize=["rows"])
def draw_kernel(
    logits, temperatures, min_logs, seeds, positions, tops, counts, limits, sums, out, stride, width, share, rows,
    TIES: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs: a row and a chunk. The one in which the cumulative mass passes the drawn one stores the token."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    after_previous(PDL)
    most, is_well = largest(tops, row, CHUNKS)
    if is_well == 0:
        if chunk == 0:
            tl.store(out + row, -1)
        return
    each = tl.arange(0, CHUNKS)
    mass = tl.load(sums + row * CHUNKS + each)
    cumulative = tl.cumsum(mass, 0)
    wanted = uniform(tl.load(seeds + row), tl.load(positions + row)) * tl.max(cumulative, 0)
    passed = tl.sum((cumulative <= wanted).to(tl.int32), 0)
    if chunk != tl.minimum(passed, tl.max(tl.where(mass > 0, each, 0), 0)):
        return
    so_far = tl.sum(tl.where(each < chunk, mass, 0.0), 0)
    key, kept = tl.load(limits + row * 5 + 3), tl.load(limits + row * 5 + 4)
    before = row * 0
    if TIES:
        before += ties(counts, key, row, rows, chunk, CHUNKS)
    low = key_of(most + tl.load(min_logs + row))
    temperature = tl.load(temperatures + row)
    end = tl.minimum(width, (chunk + 1) * share)
    token, last = width, chunk * 0
    for first in tl.range(chunk * share, end, BLOCK):
        column = first + tl.arange(0, BLOCK)
        own, found = kept_masses(logits + row * stride, temperature, column, end, most, key, kept, low, before)
        is_past = (so_far + tl.cumsum(own, 0) > wanted) & (own > 0)
        token = tl.minimum(token, tl.min(tl.where(is_past, column, width), 0))
        last = tl.maximum(last, tl.max(tl.where(own > 0, column, 0), 0))
        so_far += tl.sum(own, 0)
        before += found
    tl.store(out + row, tl.where(token < width, token, last))


def sample(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_logs: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    out: torch.Tensor,
    workspace: SamplerWorkspace,
    by_count: bool = True,
    by_mass: bool = True,
    pdl: bool = False,
) -> None:
    """out[r] = the drawn id, or the largest logit's where the temperature is 0; -1 where no token can be chosen.

    logits: a span [R, V], after masks, biases and penalties. temperatures, top_ps, min_logs: f32 [R], the last being
    ln(min_p) and minus infinity for none. top_ks: int32 [R], 0 for all. seeds, positions: int64 [R], the bits of
    unsigned numbers. out: int32 [R]. workspace: for exactly R rows. by_count: some row has a top-k or temperature 0.
    by_mass: some row has a top-p below 1.
    """
    (rows, width), chunks = logits.shape, workspace.top.shape[1]
    space, stride, share = workspace, row_stride(logits), triton.cdiv(width, chunks)
    sizes = stride, width, share, rows
    found = space.counts, space.masses, space.keys, space.rest, space.limits
    grid, shared = (rows, chunks), {"CHUNKS": chunks, "BLOCK": _BLOCK}
    launch(scan_kernel, grid, logits, temperatures, space.top, stride, width, share, **shared, num_warps=4, pdl=pdl)
    searches = [is_mass for is_mass, is_wanted in ((False, by_count), (True, by_mass)) if is_wanted]
    for is_mass in searches:
        for step in range(_STEPS):
            launch(
                search_kernel, grid, logits, temperatures, top_ks, top_ps, min_logs, space.top, *found, *sizes, step,
                PHASE=min(step, 2), MASS=is_mass, COUNTED=by_count, **shared, num_warps=4, pdl=pdl,
            )  # fmt: skip
    launch(
        sum_kernel, grid, logits, temperatures, top_ps, min_logs, space.top, *found, space.sums, *sizes, MASS=by_mass,
        COUNTED=by_count, **shared, num_warps=4, pdl=pdl,
    )  # fmt: skip
    launch(
        draw_kernel, grid, logits, temperatures, min_logs, seeds, positions, space.top, space.counts, space.limits,
        space.sums, out, *sizes, TIES=bool(searches), **shared, num_warps=4, pdl=pdl,
    )  # fmt: skip
