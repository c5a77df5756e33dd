"""Counts the sizes of a step from its inputs."""

from collections.abc import Mapping

import numpy as np

from appliance.kernels.interface import StepInputs
from appliance.program.work import StepCounts


def count_step(inputs: StepInputs, block_size: int, windows: Mapping[int | None, int]) -> StepCounts:
    """Counts a step's tokens, and its keys for each of `windows` (None: full attention), in the block tables of the
    group that the window maps to. It keeps no array."""
    return StepCounts(
        tokens=len(inputs.token_ids),
        sampled=len(inputs.sampled_rows),
        keys={
            window: _keys(inputs, inputs.block_tables[group], block_size, window) for window, group in windows.items()
        },
        visits={window: _visits(inputs.positions, window) for window in windows},
        few_logits=inputs.num_largest is not None,
        sequences=len(inputs.seq_lens),
    )


def _keys(inputs: StepInputs, block_tables: np.ndarray, block_size: int, window: int | None) -> int:
    """Returns the cached tokens that at least one query sees. A block that several sequences share counts once, except
    if one of them sees only a part of it."""
    query_lens, seq_lens = np.diff(inputs.query_start), inputs.seq_lens.astype(np.int64)
    first = 0 if window is None else np.maximum(0, seq_lens - (window + query_lens - 1))
    alone = int((seq_lens - first).sum())
    index = np.arange(block_tables.shape[1])
    begin, end = -(-first // block_size), seq_lens // block_size  # the range of blocks that are seen whole
    whole = block_tables[(index >= np.reshape(begin, (-1, 1))) & (index < end[:, None])]
    return alone - (len(whole) - len(np.unique(whole))) * block_size


def _visits(positions: np.ndarray, window: int | None) -> int:
    """Returns the number of pairs of a query and a key that it sees."""
    seen = positions.astype(np.int64) + 1
    return int((seen if window is None else np.minimum(seen, window)).sum())
