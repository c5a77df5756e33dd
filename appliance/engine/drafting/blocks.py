"""The blocks that rows hold in the cache of a drafting model, which is its own."""

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.rows import Rows


class RowBlocks:
    """Gives blocks to the rows that are followed, from a list of free ones; they come back when a row is dropped."""

    def __init__(self, config: SchedulerConfig, rows: Rows) -> None:
        self._rows = rows
        self._block_size, self._max_len = config.block_size, config.max_model_len
        self._num_groups = len(config.windows)
        self._free = list(range(config.num_blocks - 1, -1, -1))
        self._held: dict[int, list[int]] = {}  # by row

    def __contains__(self, row: int) -> bool:
        return row in self._held

    @property
    def num_free(self) -> int:
        return len(self._free)

    def put(self, row: int) -> None:
        """Follows a row, which holds nothing yet."""
        self._held[row] = []

    def drop(self, row: int) -> bool:
        """Takes back what a row holds. Returns False if it was not followed."""
        held = self._held.pop(row, None)
        self._free += held or []
        return held is not None

    def hold(self, row: int, num_tokens: int) -> bool:
        """Returns whether a row that is followed can hold so many tokens; takes the blocks that this needs."""
        missing = -(-num_tokens // self._block_size) - self._rows.num_blocks[row]
        if num_tokens > self._max_len or missing * self._num_groups > len(self._free):
            return False
        if missing > 0:
            taken = [tuple(self._free.pop() for _ in range(missing)) for _ in range(self._num_groups)]
            self._held[row] += [block for of_group in taken for block in of_group]
            self._rows.add_blocks(row, tuple(taken))
        return True
