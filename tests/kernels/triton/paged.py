"""Sequences in paged caches, as attention kernels read them, and what the reference makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from appliance.kernels.gpu.triton.attention import AttentionOptions
from appliance.kernels.gpu.triton.kv_codes import KvTensors
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
    kv_dtype: torch.dtype | None = None  # None: that of queries
    values_in_keys: bool = False

    def __str__(self) -> str:
        return "-".join(str(each) for each in (self.heads, self.kv_heads, self.head_dim, self.value_dim))

    @property
    def record(self) -> PagedAttention:
        q = Span(slot(0, self.heads * self.head_dim), 0, self.heads * self.head_dim)
        return PagedAttention(
            q, slot(1, self.heads * self.value_dim), 0, self.heads, self.kv_heads, self.head_dim, self.head_dim**-0.5,
            self.window, self.soft_cap, self.chunk, "sinks" if self.has_sinks else None,
            tuple(self.slopes.tolist()) if self.has_slopes else None, self.value_dim, self.values_in_keys,
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
    Case(20, 1, 576, 512, block_size=128, values_in_keys=True),
    Case(3, 1, 48, 40, block_size=16, values_in_keys=True),
    Case(6, 2, 192, 40, kv_dtype=torch.int8),
    Case(2, 2, 40, 80, block_size=16, kv_dtype=torch.float8_e4m3fn, window=70),
    Case(4, 1, 64, 64, kv_dtype=torch.float8_e5m2),
    Case(5, 1, 96, 64, kv_dtype=torch.float8_e4m3fn, values_in_keys=True),
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
        self.keys, self.key_scales = self._lane(case.head_dim)
        self.values, self.value_scales = self.keys[..., : case.value_dim], self.key_scales
        if not case.values_in_keys:
            self.values, self.value_scales = self._lane(case.value_dim)
        written = LayerCache(*(x if x is None else x.transpose(1, 2) for x in self._tensors))
        for sequence, length in enumerate(lengths):
            token = torch.arange(length)
            slots = self.tables[sequence].long()[token // case.block_size] * case.block_size + token % case.block_size
            k, v = (
                random(100 * seed + sequence, length, case.kv_heads, width, dtype=dtype)
                for seed, width in ((2, case.head_dim), (3, case.value_dim))
            )
            written.write(slots, k, None if case.values_in_keys else v)
        self._written = written

    @property
    def _tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        return self.keys, self.values, self.key_scales, self.value_scales

    @property
    def cache(self) -> KvTensors:
        keys, values, *scales = self._tensors
        return KvTensors(keys, None if self.case.values_in_keys else values, *scales)

    def _lane(self, width: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A cache whose blocks are wider than it, and its scales if it has codes; NaN beside the cached tokens."""
        case, blocks, dtype = self.case, self.tables.numel(), self.case.kv_dtype or self.dtype
        size = case.kv_heads * case.block_size * width
        lane = torch.full((blocks, size + 32), 127 if dtype == torch.int8 else float("nan"), dtype=dtype)[:, :size]
        numbers = lane.view(blocks, case.kv_heads, case.block_size, width)
        if case.kv_dtype is None:
            return numbers, None
        scales = torch.full((blocks, case.kv_heads * case.block_size + 4), float("nan"))[:, :-4]
        return numbers, scales.view(blocks, case.kv_heads, case.block_size)

    def expected(self) -> torch.Tensor:
        """Returns f32 [T, H * e]; zeros for sequences of no length."""
        case, out = self.case, torch.zeros(sum(self.counts), self.case.heads * self.case.value_dim)
        q = self.q.float().reshape(-1, case.heads, case.head_dim)
        for sequence, length in enumerate(self.lengths):
            if length:
                rows = slice(int(self.query_start[sequence]), int(self.query_start[sequence + 1]))
                keys, values = self._written.gather(self.tables[sequence], length)
                out[rows] = attend(case.record, q[rows], keys, values, case.options.sinks).flatten(1)
        return out
