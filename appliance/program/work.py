"""What a step has to do at least, operator by operator: bytes to read and operations to compute."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from appliance.program.operators import Embed, Extent, Linear, Operator, PagedAttention, StepProgram

Unit = Literal["f32", "bf16", "int8"]  # the arithmetic that an operator is bound by


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """Coefficients of one operator's work. A multiply and an add are two operations.

    Activations are not counted: they are small, or in a cache. An operator without weights and cache has no floor.
    """

    label: str  # of what is alike in every layer: "linear o", "rms_norm"
    unit: Unit = "f32"
    weight_bytes: int = 0  # read once a step
    row_bytes: int = 0  # a token: the embedding's row
    key_bytes: int = 0  # a cached token that a sequence's queries see
    row_operations: int = 0  # a row of `extent`
    visit_operations: int = 0  # a pair of a query and a key that it sees
    extent: Extent = Extent.TOKENS
    window: int | None = None
    screened: "OperatorWork | None" = None  # in steps that ask for few of the logits, where that is less
    screened_rows: int = 0  # of logits at most, of such steps


@dataclass(frozen=True, slots=True)
class StepCounts:
    """The sizes of a step that work depends on: T tokens of S sequences, R rows of logits. Block tables are looked at
    while the counts are made and asked."""

    tokens: int
    sampled: int
    query_lens: np.ndarray  # [S]
    seq_lens: np.ndarray  # [S], in the cache after the step
    positions: np.ndarray  # [T]
    block_tables: np.ndarray  # [S, blocks of the longest sequence or more]
    block_size: int
    few_logits: bool = False  # are asked for: the largest of each row
    _keys: dict[int | None, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def work_of(self, work: OperatorWork) -> OperatorWork:
        """What the operator has to do in this step."""
        if self.few_logits and work.screened is not None and self.sampled <= work.screened_rows:
            return work.screened
        return work

    def keys(self, window: int | None) -> int:
        """Cached tokens that at least one query sees. What several sequences see counts once, but for blocks that one
        of them sees in part."""
        if window not in self._keys:  # layers ask for the same few
            self._keys[window] = self._count_keys(window)
        return self._keys[window]

    def _count_keys(self, window: int | None) -> int:
        first = 0 if window is None else np.maximum(0, self.seq_lens - (window + self.query_lens - 1))
        alone = int((self.seq_lens - first).sum())
        index = np.arange(self.block_tables.shape[1])
        begin, end = -(-first // self.block_size), self.seq_lens // self.block_size  # of the blocks that are seen whole
        whole = self.block_tables[(index >= np.reshape(begin, (-1, 1))) & (index < end[:, None])]
        return alone - (len(whole) - len(np.unique(whole))) * self.block_size

    def visits(self, window: int | None) -> int:
        """Pairs of a query and a key that it sees."""
        seen = self.positions + 1
        return int((seen if window is None else np.minimum(seen, window)).sum())

    def bytes_of(self, work: OperatorWork) -> int:
        keys = work.key_bytes * self.keys(work.window) if work.key_bytes else 0
        return work.weight_bytes + work.row_bytes * self.tokens + keys

    def operations_of(self, work: OperatorWork) -> int:
        rows = self.tokens if work.extent is Extent.TOKENS else self.sampled
        visits = work.visit_operations * self.visits(work.window) if work.visit_operations else 0
        return work.row_operations * rows + visits


def program_work(
    program: StepProgram,
    weight_bytes: Callable[[str], int],
    kv_dtype: str,
    *,
    int8_inputs: bool,
    screen: tuple[int, int] | None = None,
) -> tuple[OperatorWork, ...]:
    """weight_bytes: of a matrix as it lies in memory, by name. int8_inputs: weights of 8 bits and less meet int8.
    screen: bytes of the copy of what the last operator multiplies with, and for how many rows at most it is used."""

    def work(op: Operator) -> OperatorWork:
        match op:
            case Linear():
                size, elements = weight_bytes(op.weight), op.x.width * op.out.width
                return OperatorWork(
                    label=f"linear {op.weight.rpartition('.')[2]}",
                    unit=_unit(8 * size / elements, int8_inputs),
                    weight_bytes=size,
                    row_operations=2 * elements,
                    extent=op.x.slot.extent,
                )
            case Embed():
                return OperatorWork("embed", row_bytes=4 * op.out.width)
            case PagedAttention():
                return OperatorWork(
                    label="attention" if op.window is None else "attention in a window",
                    unit="bf16" if kv_dtype == "bf16" else "f32",
                    key_bytes=2 * op.num_kv_heads * op.head_dim * (4 if kv_dtype == "f32" else 2),
                    visit_operations=4 * op.num_heads * op.head_dim,
                    window=op.window,
                )
            case _:
                return OperatorWork(_snake(type(op).__name__))

    found = [work(op) for op in program.operators]
    if screen is not None:
        last, (size, rows) = found[-1], screen
        screened = replace(last, label=f"{last.label}, screened", unit="int8", weight_bytes=size)
        found[-1] = replace(last, screened=screened, screened_rows=rows)
    return tuple(found)


def _unit(bits: float, int8_inputs: bool) -> Unit:
    """Of a weight with this many bits an element, scales included."""
    if bits >= 32:
        return "f32"
    if bits >= 16:
        return "bf16"
    return "int8" if int8_inputs else "f32"


def _snake(name: str) -> str:
    return re.sub(r"(?<=.)(?=[A-Z])", "_", name).lower()
