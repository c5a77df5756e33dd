"""The sizes of a step, and the sizes of graphs to which a step is padded."""

import bisect
from dataclasses import dataclass
from typing import Self

import numpy as np

from appliance.kernels.execution import ExecutionLimits, Graphs
from appliance.kernels.interface import StepInputs


@dataclass(frozen=True, slots=True)
class StepShape:
    """The sizes of a step. is_decode: its sequences have one new token each, and it is captured as a whole."""

    num_tokens: int
    num_seqs: int
    num_rows: int
    is_decode: bool = False

    @classmethod
    def of(cls, inputs: StepInputs) -> Self:
        """Returns the sizes that a step has by itself."""
        return cls(len(inputs.token_ids), len(inputs.seq_lens), len(inputs.sampled_rows))


class GraphSizes:
    """Finds the graph sizes of steps. Sizes that a program's memory has no rows for are left out."""

    def __init__(self, graphs: Graphs, limits: ExecutionLimits) -> None:
        self.decode = [size for size in graphs.decode if size <= min(limits.max_num_seqs, limits.max_num_sampled)]
        self.tokens = [size for size in graphs.tokens if size <= limits.max_num_batched_tokens]
        self._max_rows = limits.max_num_sampled
        self._max_seq_len = graphs.max_seq_len

    def shape_of(self, inputs: StepInputs) -> StepShape | None:
        """Returns the sizes to which a step is padded; None if no graph is as large, or a sequence is too long."""
        own = StepShape.of(inputs)
        longest = self._max_seq_len
        if longest is not None and own.num_seqs and int(inputs.seq_lens.max()) > longest:
            return None
        most = max(own.num_seqs, own.num_rows)
        if own.num_tokens == own.num_seqs and self.decode and bool((np.diff(inputs.query_start) == 1).all()):
            size = _least(self.decode, most)
            return None if size is None else StepShape(size, size, size, is_decode=True)
        tokens = _least(self.tokens, own.num_tokens)
        return None if tokens is None else StepShape(tokens, own.num_seqs, self._rows(own.num_rows))

    def all(self) -> list[StepShape]:
        """Returns a shape for each size, those of decodes first. The steps of other sizes have no sequences."""
        decode = [StepShape(size, size, size, is_decode=True) for size in self.decode]
        return decode + [StepShape(size, 0, self._rows(size)) for size in self.tokens]

    def _rows(self, num_rows: int) -> int:
        """Returns the rows to which those that are sampled are padded: none stay none."""
        return min(_least(self.tokens, num_rows) or num_rows, self._max_rows) if num_rows else 0


def _least(sizes: list[int], wanted: int) -> int | None:
    """Returns the least of rising sizes that is no less; None if there is none, or nothing is wanted."""
    at = bisect.bisect_left(sizes, wanted)
    return sizes[at] if wanted and at < len(sizes) else None
