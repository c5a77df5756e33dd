"""Counts the sizes of a step from its inputs."""

from collections.abc import Mapping

import numpy as np

from appliance.kernels.interface import StepInputs
from appliance.program.work import ChunkReach, Reach, StepCounts


def count_step(inputs: StepInputs, block_size: int, groups: Mapping[Reach, int | None]) -> StepCounts:
    """Counts a step's tokens, and its keys for each reach, in the block tables of the group it maps to; None
    for keys that are in no cache, which no two sequences share. It keeps no array."""
    return StepCounts(
        tokens=len(inputs.token_ids),
        sampled=len(inputs.sampled_rows),
        keys={reach: _keys(inputs, group, block_size, reach) for reach, group in groups.items()},
        visits={reach: _visits(inputs.positions, reach) for reach in groups},
        few_logits=inputs.num_largest is not None,
        sequences=len(inputs.seq_lens),
    )


def _keys(inputs: StepInputs, group: int | None, block_size: int, reach: Reach) -> int:
    """Returns the tokens that at least one query sees. A block that several sequences share counts once, except if one
    of them sees only a part of it."""
    seq_lens = inputs.seq_lens.astype(np.int64)
    first = _first_keys(seq_lens, np.diff(inputs.query_start), reach)
    alone = int((seq_lens - first).sum())
    if group is None:
        return alone
    block_tables = inputs.block_tables[group]
    index = np.arange(block_tables.shape[1])
    begin, end = -(-first // block_size), seq_lens // block_size  # the range of blocks that are seen whole
    whole = block_tables[(index >= begin[:, None]) & (index < end[:, None])]
    return alone - (len(whole) - len(np.unique(whole))) * block_size


def _first_keys(seq_lens: np.ndarray, query_lens: np.ndarray, reach: Reach) -> np.ndarray:
    """Returns the first key that the first query of each sequence sees."""
    first_queries = seq_lens - query_lens
    match reach:
        case None:
            first = np.zeros_like(seq_lens)
        case ChunkReach(size):
            first = first_queries // size * size
        case window:
            first = np.maximum(0, first_queries - (window - 1))
    return np.asarray(first)


def _visits(positions: np.ndarray, reach: Reach) -> int:
    """Returns the number of pairs of a query and a key that it sees."""
    before = positions.astype(np.int64)
    match reach:
        case None:
            return int((before + 1).sum())
        case ChunkReach(size):
            return int((before % size + 1).sum())
        case window:
            return int(np.minimum(before + 1, window).sum())
