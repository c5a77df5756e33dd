"""The tiles of new tokens in which attention of chunks and whole prompts is computed."""

from typing import Final

import numpy as np
import numpy.typing as npt

NO_SEQUENCE: Final = -1  # in a list of tiles


def prefill_tiles(
    query_start: npt.NDArray[np.int32], tile_rows: int, skip_single: bool = True, num_tiles: int | None = None
) -> npt.NDArray[np.int32]:
    """Returns int32 [tiles, 2], on the host: the sequence and the first new token of each tile, later tokens first.

    query_start: int32 [S + 1]. skip_single: sequences of one new token are left to decode attention. num_tiles: the
    length of the list, whose rest are tiles of no sequence. Later tokens see more keys, and so are begun earlier.
    Raises ValueError if there are more tiles than that.
    """
    counts = np.diff(query_start)
    tiles = [
        (sequence, row)
        for sequence, count in enumerate(counts.tolist())
        if count > 1 or (count == 1 and not skip_single)
        for row in range((count - 1) // tile_rows * tile_rows, -1, -tile_rows)
    ]
    rest = 0 if num_tiles is None else num_tiles - len(tiles)
    if rest < 0:
        raise ValueError(f"{len(tiles)} tiles are more than {num_tiles}")
    return np.array(tiles + [(NO_SEQUENCE, 0)] * rest, np.int32).reshape(-1, 2)
