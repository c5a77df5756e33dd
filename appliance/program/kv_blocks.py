"""Counts the blocks that sequences hold: groups with full attention keep all, and others what their windows reach."""

from bisect import bisect_right
from collections.abc import Sequence


def blocks_held(windows: Sequence[int | None], block_size: int, num_tokens: int, chunk: int = 1) -> int:
    """Returns the most blocks that a sequence of `num_tokens` holds in groups of these windows, while `chunk` tokens of
    it run in one step: all of these are stored before attention reads any."""
    blocks = -(-num_tokens // block_size)
    return sum(
        blocks if window is None else min(blocks, _spanned(window - 1 + chunk, block_size)) for window in windows
    )


def longest_held(
    windows: Sequence[int | None], block_size: int, num_blocks: int, limit: int, *, is_chunked: bool = True
) -> int:
    """Returns the tokens of the longest sequence, up to `limit`, that so many blocks can hold. Its prompt runs
    whole if it is not chunked."""
    return (
        bisect_right(
            range(limit + 1),
            num_blocks,
            key=lambda length: blocks_held(windows, block_size, length, 1 if is_chunked else length),
        )
        - 1
    )


def _spanned(num_tokens: int, block_size: int) -> int:
    """Returns the most blocks in which so many consecutive tokens can lie."""
    return -(-(num_tokens - 1) // block_size) + 1
