"""The pool of KV blocks: reference counts, a hash table of cached blocks, and the free blocks in LRU order."""

from collections.abc import Iterable

BlockHash = int | bytes
BlockName = BlockHash | tuple[int, BlockHash]


class OutOfBlocksError(Exception):
    """More blocks were requested than are free. The scheduler checks first, so this is a bug."""


class BlockPool:
    """Blocks are plain ints. Free ones form a circular doubly linked list through a sentinel, so every change is O(1).

    The list's head is taken next. A free block may still be cached: its content stays valid until it is taken. A block
    belongs to the group that took it last.
    """

    def __init__(self, num_blocks: int, num_groups: int = 1) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.num_touched = 0  # blocks 0 to num_touched - 1 have resident memory: new blocks are taken in order
        self._num_taken = 0  # blocks that were ever taken
        self._sentinel = num_blocks
        self._next = [*range(1, num_blocks + 1), 0]
        self._previous = [num_blocks, *range(num_blocks)]
        self._references = [0] * num_blocks
        self.used_by_group = [0] * num_groups
        self._group_of = [0] * num_blocks
        self._name_of: list[BlockName | None] = [None] * num_blocks
        self._cached: dict[BlockName, int] = {}
        self.version = 0  # changes with the hash table, so that a caller can keep the result of a lookup

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """The blocks that can be found by their content."""
        return len(self._cached)

    def references(self, block: int) -> int:
        return self._references[block]

    def lookup(self, name: BlockName) -> int | None:
        """Returns the block that holds this content, used or free; None if there is none."""
        return self._cached.get(name)

    def take(self, count: int, group: int = 0) -> list[int]:
        """Takes the least recently used free blocks for a group out of the hash table. Raises OutOfBlocksError.

        They are sorted: a sequence releases its blocks last first, and memory is read faster in ascending order.
        """
        if count > self.num_free:
            raise OutOfBlocksError(f"{count} blocks wanted, {self.num_free} free")
        taken = []
        following, sentinel = self._next, self._sentinel
        block = following[sentinel]
        for _ in range(count):
            if self._name_of[block] is not None:
                self._forget(block)
            elif block >= self._num_taken:
                self._num_taken = block + 1
            self._references[block] = 1
            self._group_of[block] = group
            taken.append(block)
            block = following[block]
        following[sentinel] = block
        self._previous[block] = sentinel
        self.num_free -= count
        self.used_by_group[group] += count
        self.num_touched = max(self.num_touched, self._num_taken)
        taken.sort()
        return taken

    def touch_next(self, reserve: int) -> int | None:
        """Returns a block whose memory to make resident now, and counts it as resident. Returns None once `reserve`
        blocks beyond those ever taken are resident."""
        block = self.num_touched
        if block >= min(self.num_blocks, self._num_taken + reserve):
            return None
        self.num_touched += 1
        return block

    def forget_resident(self) -> None:
        """The memory of the blocks was given back, while none was used or cached: they are taken in order again."""
        assert not self.num_used, "no request is open"
        assert not self._cached, "the prefix cache was emptied"
        self.num_touched = self._num_taken = 0
        self._next = [*range(1, self.num_blocks + 1), 0]
        self._previous = [self.num_blocks, *range(self.num_blocks)]

    def share(self, blocks: Iterable[int]) -> None:
        """Adds a reference to each block; a free one leaves the free list with its content."""
        for block in blocks:
            if self._references[block] == 0:
                self._unlink(block)
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drops a reference to each block, in order: among blocks freed together, the first is reused first.

        A block that caches nothing goes to the front: reusing it loses nothing, and keeps untouched memory untouched.
        """
        for block in blocks:
            self._references[block] -= 1
            if self._references[block] == 0:
                at = self._next[self._sentinel] if self._name_of[block] is None else self._sentinel
                self._link_before(block, at)

    def register(self, block: int, name: BlockName) -> None:
        """Makes a block findable by its content. The first block with a given content stays the cached one."""
        if self._cached.setdefault(name, block) == block:
            self._name_of[block] = name
            self.version += 1

    def forget(self, block: int) -> None:
        """Removes a block from the hash table, because its content cannot be trusted."""
        if self._name_of[block] is not None:
            self._forget(block)

    def forget_all(self) -> None:
        """Empties the hash table. Contents of used blocks stay where they are."""
        for block in self._cached.values():
            self._name_of[block] = None
        self._cached.clear()
        self.version += 1

    def check_invariants(self, tables: Iterable[Iterable[int]]) -> None:
        """Raises AssertionError unless references equal the tables and the free list holds exactly the rest."""
        expected = [0] * self.num_blocks
        for table in tables:
            for block in table:
                expected[block] += 1
        assert expected == self._references, "references differ from the tables"
        free = []
        block = self._next[self._sentinel]
        while block != self._sentinel:
            assert self._next[self._previous[block]] == block, f"block {block} is badly linked"
            free.append(block)
            block = self._next[block]
        assert sorted(free) == [b for b, count in enumerate(expected) if count == 0], "free list differs"
        assert len(free) == self.num_free, "free count differs"
        used = [self._group_of[block] for block, count in enumerate(expected) if count]
        assert self.used_by_group == [used.count(group) for group in range(len(self.used_by_group))], "groups differ"
        assert all(self._name_of[block] == key for key, block in self._cached.items()), "hash table differs"
        assert sum(key is not None for key in self._name_of) == len(self._cached), "stale hash on a block"
        assert self.num_touched >= self._num_taken >= self.num_used, "touched count differs"
        never_taken = range(self._num_taken, self.num_blocks)
        assert not any(expected[b] or self._name_of[b] is not None for b in never_taken), "a new block is in use"

    def _forget(self, block: int) -> None:
        name = self._name_of[block]
        assert name is not None
        del self._cached[name]
        self._name_of[block] = None
        self.version += 1

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self.num_free -= 1
        self.used_by_group[self._group_of[block]] += 1

    def _link_before(self, block: int, at: int) -> None:
        before = self._previous[at]
        self._next[before] = block
        self._previous[at] = block
        self._previous[block] = before
        self._next[block] = at
        self.num_free += 1
        self.used_by_group[self._group_of[block]] -= 1
