"""What the executor on torch allocates beside weights and caches of a device: the plan and the executor ask the same
functions, so that what is planned is what is taken."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil
from typing import Final, NamedTuple

import msgspec

from appliance.catalog.gpu_operators import FEW_ROWS
from appliance.program.adapters import AdapterLinear
from appliance.program.arena import Arena, Liveness
from appliance.program.caches import KV_BYTES, kv_scale_bytes
from appliance.program.operators import Add, Copy, Linear, PagedAttention, StepProgram
from appliance.program.ranks import Gather
from appliance.program.routing import ChooseExperts, Experts
from appliance.program.slots import Extent, Slot

ALIGNMENT: Final = 64  # bytes; compilers of kernels make other code for pointers that are not multiples of 16
SPARE_COLUMNS: Final = 8  # of block tables, which may have more columns than the longest sequence has blocks
MOST_SHARES: Final = 64  # of a sequence's keys, which attend at the same time
INVARIANT_SHARES: Final = 8  # of every sequence, where rows round alike in every batch
ADAPTER_SHARES: Final = 4  # of the columns that are multiplied with an adapter's map
PRODUCT_SHARES: Final = 8  # of a product's columns
EXPERT_TILE_ROWS: Final = 64  # rows of an expert that are multiplied together, at most
LEAST_TILE_ROWS: Final = 16  # new tokens of a sequence that attend together, at least
LOGPROB_ROWS: Final = 64  # whose log-probabilities are taken at the same time
RING_PIECES: Final = 2  # of the host's memory, through which weights come to a GPU
RING_PIECE_BYTES: Final = 1 << 26
DRAW_CHUNKS: Final = 32  # programs that draw from one row
DRAW_DIGITS: Final = 16  # values of a digit of four bits
DRAW_COLUMN_BYTES: Final = 32  # of a row's parameters, as the kernels of draws read them
_INT32, _F32, _F64 = 4, 4, 8


class StepLimits(msgspec.Struct, frozen=True):
    """The sizes of the largest step, as kernels.execution.ExecutionLimits has them."""

    num_tokens: int
    num_seqs: int
    num_sampled: int
    max_model_len: int
    block_size: int

    @property
    def rows(self) -> dict[Extent, int]:
        return {Extent.TOKENS: self.num_tokens, Extent.SAMPLED: self.num_sampled}


class ExpertShape(NamedTuple):
    """What the memory of routed experts depends on. opened, inner, out: columns of the rows that experts compute."""

    num_experts: int
    num_chosen: int
    opened: int
    inner: int
    out: int

    @classmethod
    def of(cls, op: Experts) -> "ExpertShape":
        return cls(op.num_own, op.num_chosen, op.width * (2 if op.is_gated else 1), op.width, op.out_width)

    def positions(self, num_tokens: int) -> int:
        """Returns the most rows that the pairs of a token and an expert take, each expert's rows in whole tiles."""
        return num_tokens * self.num_chosen + self.num_experts * EXPERT_TILE_ROWS

    def integers(self, num_tokens: int) -> tuple[int, ...]:
        """Returns the lengths of the int32 arrays that order pairs: counts, places, order, and experts of tiles."""
        positions = self.positions(num_tokens)
        return self.num_experts, num_tokens * self.num_chosen, positions, positions

    def size_bytes(self, num_tokens: int, element_bytes: int) -> int:
        floats = self.positions(num_tokens) * (self.opened + self.inner + self.out)
        return _INT32 * sum(self.integers(num_tokens)) + element_bytes * floats


def expert_shapes(programs: Iterable[StepProgram]) -> set[ExpertShape]:
    """Returns the shapes that need memory: layers of one shape share it."""
    return {ExpertShape.of(op) for program in programs for op in program.operators if isinstance(op, Experts)}


def table_columns(limits: StepLimits) -> int:
    """Returns the columns of the widest block table."""
    return ceil(limits.max_model_len / limits.block_size) + SPARE_COLUMNS


def input_bytes(
    limits: StepLimits,
    num_groups: int,
    num_tile_lists: int = 0,
    *,
    has_states: bool = False,
    has_adapters: bool = False,
) -> int:
    """Returns the bytes of the buffer of a step's numbers, of which the host has one and the device one.

    num_tile_lists: sizes of tiles in which kernels want the tokens of sequences that have several. has_states: pieces
    say where states are, of which each has a token, but for two of each sequence. has_adapters: each token has a
    slot and a scale.
    """
    tokens, seqs = limits.num_tokens, limits.num_seqs
    numbers = tokens * (4 + num_groups) + 2 * seqs + 1 + num_groups * seqs * table_columns(limits) + limits.num_sampled
    numbers += num_tile_lists * 2 * num_prefill_tiles(tokens, seqs, LEAST_TILE_ROWS)
    if has_states:
        numbers += seqs + 1 + 4 * (tokens + 2 * seqs)
    numbers += 2 * tokens * has_adapters
    return _INT32 * numbers + (9 + num_tile_lists + 2 * has_states + 2 * has_adapters) * ALIGNMENT


def num_prefill_tiles(num_tokens: int, num_seqs: int, tile_rows: int) -> int:
    """Returns the most tiles that a step of so many new tokens in so many sequences can have."""
    return num_tokens // tile_rows + num_seqs


def share_numbers(
    programs: Iterable[StepProgram], num_seqs: int, num_processors: int, *, batch_invariant: bool = False
) -> int:
    """Returns the f32 numbers in which decode attention leaves the shares of sequences, of any number of them.

    There are shares enough for two programs on each processor, and their number is a power of two, so that all
    sequences together have fewer than four programs a processor; one share of each needs nothing.
    """
    attention = [op for program in programs for op in program.operators if isinstance(op, PagedAttention)]

    def shares(op: PagedAttention) -> int:
        wanted = ceil(4 * num_processors / op.num_kv_heads)
        return min(MOST_SHARES * num_seqs, INVARIANT_SHARES * num_seqs if batch_invariant else wanted)

    return max((shares(op) * op.num_heads * (op.value_width + 2) for op in attention), default=0)


def product_numbers(
    programs: Iterable[StepProgram], num_tokens: int, num_processors: int, *, batch_invariant: bool = False
) -> int:
    """Returns the f32 numbers in which products of few rows leave the shares of their columns.

    Columns are shared out only where the features leave processors without a program, of 64 features, or half of them
    without a second one; all shares together have fewer than 512 / 3 features a processor then. batch_invariant:
    kernels of ours multiply any number of rows.
    """
    widths = (op.out.width for program in programs for op in program.operators if isinstance(op, Linear))
    features = min(PRODUCT_SHARES * max(widths, default=0), ceil(512 * num_processors / 3))
    return features * (num_tokens if batch_invariant else min(FEW_ROWS, num_tokens))


def adapter_numbers(programs: Iterable[StepProgram], num_tokens: int, num_sampled: int) -> int:
    """Returns the f32 numbers in which adapters leave the shares of rows between their maps."""
    changes = (op for program in programs for op in program.operators if isinstance(op, AdapterLinear))
    widest = max((len(op.parts) * max(16, 1 << (op.max_rank - 1).bit_length()) for op in changes), default=0)
    return ADAPTER_SHARES * max(num_tokens, num_sampled) * widest


def rounded_sizes(
    programs: Iterable[StepProgram], limits: StepLimits, element_bytes: int, *, batch_invariant: bool = False
) -> tuple[int, int]:
    """Returns the bytes of rows that are rounded to FP8 before a product, and the f32 scales of rows.

    Rows are codes, or few rows are numbers; all of them with batch_invariant.
    """
    products = (op for program in programs for op in program.operators if isinstance(op, Linear))
    columns = max((op.x.width for op in products), default=0)
    rows = max(limits.rows.values())
    numbers = rows if batch_invariant else min(FEW_ROWS, rows)
    return ceil(columns * max(rows, numbers * element_bytes) / ALIGNMENT) * ALIGNMENT, rows


def draw_bytes(num_rows: int, chunks: int = DRAW_CHUNKS) -> int:
    """Returns the bytes that the kernels of draws hand on: largest logits and sums by chunk, counts and masses by digit
    (of even and of odd steps), digits chosen so far, what is to be kept, five limits and the parameters of a row."""
    by_chunk = chunks * (_F32 + _F64 + 2 * DRAW_DIGITS * (_INT32 + _F64))
    return num_rows * (by_chunk + 2 * (8 + _F64) + 5 * 8 + DRAW_COLUMN_BYTES)


def kernel_bytes(
    programs: Sequence[StepProgram], limits: StepLimits, element_bytes: int, num_processors: int,
    *, batch_invariant: bool = False, rounds_inputs: bool = False,
) -> int:  # fmt: skip
    """Returns the bytes in which kernels leave what they hand on: shares, pairs of experts, and draws.

    batch_invariant: decodes attend as prompts do, without shares, and all products leave shares.
    rounds_inputs: activations are rounded to FP8.
    """
    numbers = 0 if batch_invariant else share_numbers(programs, limits.num_seqs, num_processors)
    numbers += product_numbers(programs, limits.num_tokens, num_processors, batch_invariant=batch_invariant)
    experts = (shape.size_bytes(limits.num_tokens, element_bytes) for shape in expert_shapes(programs))
    numbers += adapter_numbers(programs, limits.num_tokens, limits.num_sampled)
    codes, scales = 0, 0
    if rounds_inputs:
        codes, scales = rounded_sizes(programs, limits, element_bytes, batch_invariant=batch_invariant)
    return codes + _F32 * (numbers + scales) + sum(experts) + draw_bytes(limits.num_sampled)


def spare_block_bytes(program: StepProgram, block_size: int, kv_dtype: str) -> int:
    """Returns the bytes of the block of all lanes that no table has: tokens without a slot are written there."""
    number, scale = KV_BYTES[kv_dtype], kv_scale_bytes(kv_dtype)

    def slot_bytes(cache: int, part: slice) -> int:
        shape = program.caches[cache]
        return shape.num_kv_heads * sum(width * number + scale for width in shape.stored_dims[part])

    lanes = program.kv_layout().lanes()
    parts = (slice(0, 1), slice(1, 2))  # of keys, and of values where they are stored
    return block_size * sum(max(slot_bytes(cache, part) for cache in lane) for lane in lanes for part in parts)


def wide_slots(program: StepProgram) -> frozenset[int]:
    """Returns the slots that are f32 whatever the activations are: logits are sampled from, and routing is decided; and
    those in which ranks compute parts of these."""
    routing = (slot for op in program.operators if isinstance(op, ChooseExperts) for slot in (op.logits, op.factors))
    wide = {program.logits.index, *(slot.index for slot in routing)}
    for op in program.operators:
        if isinstance(op, Copy) and op.out.slot.index in wide:
            wide.add(op.x.slot.index)
        elif isinstance(op, Add) and op.out.index in wide:
            wide.add(op.x.index)
    return frozenset(wide)


def gather_bytes(program: StepProgram, limits: StepLimits, element_bytes: int) -> int:
    """Returns the bytes through which ranks exchange columns: those of one rank, and those of all, as many of each as
    of the one that has most."""
    wide, most = wide_slots(program), 0
    for op in program.operators:
        if isinstance(op, Gather) and op.experts is None and not op.by_token:
            slot = op.x.slot
            widest = max(stop - start for start, stop in pairwise(op.starts))
            each = 4 if slot.buffer.index in wide else element_bytes
            most = max(most, limits.rows[slot.extent] * widest * len(op.starts) * each)
    return ceil(most / ALIGNMENT) * ALIGNMENT


def place_slots(program: StepProgram, limits: StepLimits, element_bytes: int) -> Arena:
    """Places the slots of a program: those whose type it leaves open (f32) have the activations' width."""
    wide, rows = wide_slots(program), limits.rows

    def size_of(slot: Slot) -> int:
        is_open = slot.dtype == "f32" and slot.index not in wide
        return rows[slot.extent] * (slot.width * element_bytes if is_open else slot.row_bytes)

    return Liveness.of(program).arena(size_of)
