"""Sequences in paged caches, as attention kernels read them, and what the reference makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from appliance.kernels.gpu.triton.attention import AttentionOptions
from appliance.kernels.reference.attention import LayerCache, attend
from appliance.program.operators import PagedAttention
from appliance.program.slots import Span
from tests.kernels.triton.oracle import random, slot

TABLE_WIDTH = 22


@dataclass(frozen=True)
class Case:
    """The fields are those of PagedAttention, and the block size."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    block_size: int = 64
    window: int | None = None
    soft_cap: float | None = None
    chunk: int | None = None
    has_sinks: bool = False
    has_slopes: bool = False

    def __str__(self) -> str:
        return "-".join(str(each) for each in (self.heads, self.kv_heads, self.head_dim, self.value_dim))

    @property
    def record(self) -> PagedAttention:
        q = Span(slot(0, self.heads * self.head_dim), 0, self.heads * self.head_dim)
        return PagedAttention(
            q, slot(1, self.heads * self.value_dim), 0, self.heads, self.kv_heads, self.head_dim, self.head_dim**-0.5,
            self.window, self.soft_cap, self.chunk, "sinks" if self.has_sinks else None,
            tuple(self.slopes.tolist()) if self.has_slopes else None, self.value_dim,
        )  # fmt: skip

    @property
    def slopes(self) -> torch.Tensor:
        return 2.0 ** -torch.arange(1.0, self.heads + 1)

    @property
    def options(self) -> AttentionOptions:
        op = self.record
        return AttentionOptions(
            op.num_heads, op.scale, op.window, op.soft_cap, op.chunk, random(7, self.heads) if self.has_sinks else None,
            self.slopes if self.has_slopes else None,
        )  # fmt: skip


# Groups of 1 to 16, heads of 64 to 576, values narrower than keys; each option, and some together.
CASES = [
    Case(2, 2, 64, 64),
    Case(7, 1, 64, 64, block_size=16),
    Case(8, 2, 128, 128, window=70),
    Case(16, 1, 80, 80, window=40, soft_cap=30.0),
    Case(4, 1, 192, 128, chunk=96, has_sinks=True),
    Case(4, 2, 256, 256, has_slopes=True),
    Case(2, 1, 512, 512, soft_cap=20.0, has_slopes=True, has_sinks=True, window=33),
    Case(20, 1, 576, 512, block_size=128),
]


class Paged:
    """Sequences with `counts` new tokens of `lengths` in all, in scattered blocks; beyond them is NaN."""

    def __init__(self, case: Case, counts: Sequence[int], lengths: Sequence[int], dtype: torch.dtype) -> None:
        self.case, self.counts, self.lengths, self.dtype = case, counts, lengths, dtype
        numbers = np.random.default_rng(3).permutation(len(lengths) * TABLE_WIDTH)
        self.tables = torch.from_numpy(numbers.astype(np.int32)).reshape(len(lengths), TABLE_WIDTH)
        self.query_start = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
        self.seq_lens = torch.tensor(lengths, dtype=torch.int32)
        self.q = random(1, sum(counts), case.heads * case.head_dim, dtype=dtype)
        self.keys, self.values = self._lane(2, case.head_dim), self._lane(3, case.value_dim)

    def _lane(self, seed: int, width: int) -> torch.Tensor:
        """A cache whose blocks are wider than it, NaN beside the cached tokens."""
        case = self.case
        size = case.kv_heads * case.block_size * width
        lane = torch.full((self.tables.numel(), size + 32), float("nan"), dtype=self.dtype)[:, :size]
        cache = lane.view(-1, case.kv_heads, case.block_size, width)
        for sequence, length in enumerate(self.lengths):
            token = torch.arange(length)
            blocks = self.tables[sequence].long()[token // case.block_size]
            of_sequence = random(100 * seed + sequence, length, case.kv_heads, width, dtype=self.dtype)
            cache[blocks, :, token % case.block_size] = of_sequence
        return cache

    def expected(self) -> torch.Tensor:
        """Returns f32 [T, H * e]; zeros for sequences of no length."""
        case, out = self.case, torch.zeros(sum(self.counts), self.case.heads * self.case.value_dim)
        cache = LayerCache(self.keys.transpose(1, 2), self.values.transpose(1, 2))
        q = self.q.float().reshape(-1, case.heads, case.head_dim)
        for sequence, length in enumerate(self.lengths):
            if length:
                rows = slice(int(self.query_start[sequence]), int(self.query_start[sequence + 1]))
                keys, values = cache.gather(self.tables[sequence], length)
                out[rows] = attend(case.record, q[rows], keys, values, case.options.sinks).flatten(1)
        return out
