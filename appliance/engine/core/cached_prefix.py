"""What of a sequence is in the prefix cache."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The longest prefix of a sequence that is cached: `num_blocks` blocks in the table of each group. The first
    num_dropped[g] of them left the window of group g, and their numbers mean nothing."""

    num_blocks: int
    tables: list[list[int]]
    num_dropped: list[int]
    num_known: int = 0  # blocks, from the first on, that an earlier prompt had, too; counted for snapshots alone

    def held(self) -> Iterator[int]:
        for table, dropped in zip(self.tables, self.num_dropped, strict=True):
            yield from table[dropped:]
