"""The sizes of a step, counted from its inputs."""

from collections.abc import Iterable

import numpy as np

from appliance.kernels.interface import StepInputs
from appliance.program.work import StepCounts


def count_step(inputs: StepInputs, block_size: int, windows: Iterable[int | None]) -> StepCounts:
    """Counts for each of `windows` (None: all that came before). Looks at the arrays now, and keeps none."""
    windows = tuple(windows)
    return StepCounts(
        tokens=len(inputs.token_ids),
        sampled=len(inputs.sampled_rows),
        keys={window: _keys(inputs, block_size, window) for window in windows},
        visits={window: _visits(inputs.positions, window) for window in windows},
        few_logits=inputs.num_largest is not None,
    )


def _keys(inputs: StepInputs, block_size: int, window: int | None) -> int:
    """Cached tokens that at least one query sees. What several sequences see counts once, but for blocks that one of
    them sees in part."""
    query_lens, seq_lens = np.diff(inputs.query_start), inputs.seq_lens.astype(np.int64)
    first = 0 if window is None else np.maximum(0, seq_lens - (window + query_lens - 1))
    alone = int((seq_lens - first).sum())
    index = np.arange(inputs.block_tables.shape[1])
    begin, end = -(-first // block_size), seq_lens // block_size  # of the blocks that are seen whole
    whole = inputs.block_tables[(index >= np.reshape(begin, (-1, 1))) & (index < end[:, None])]
    return alone - (len(whole) - len(np.unique(whole))) * block_size


def _visits(positions: np.ndarray, window: int | None) -> int:
    """Pairs of a query and a key that it sees."""
    seen = positions.astype(np.int64) + 1
    return int((seen if window is None else np.minimum(seen, window)).sum())
