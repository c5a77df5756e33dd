"""Snapshots of recurrent states at block boundaries, so that models with states begin from cached prefixes, too."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from appliance.engine.core.block_pool import BlockHash, BlockPool

MOST_KNOWN = 1 << 16  # prefixes that are remembered to find where prompts part


class Snapshots:
    """Slots that hold the states after a prefix, each by the hash of the prefix's last block.

    A step that is planned writes its snapshots only when it runs. So they are found from the next plan on, and a slot
    that a plan reads is not written by the same plan: `settle` begins a plan.
    """

    def __init__(self, num_snapshots: int, first_slot: int) -> None:
        self._pool = BlockPool(num_snapshots)
        self._first_slot = first_slot
        self._reading: list[int] = []  # by the plan that is being made
        self._writing: dict[BlockHash, int] = {}
        self._known: OrderedDict[BlockHash, None] = OrderedDict()
        self._num_noted = 0

    @property
    def version(self) -> int:
        """Changes with what `has` and `count_known` answer, so that a caller can keep the result of a lookup."""
        return self._pool.version + self._num_noted

    @property
    def num_kept(self) -> int:
        return self._pool.num_cached

    def settle(self) -> None:
        """Begins a plan: what the last one wrote can be found, and what it read may be overwritten."""
        for block_hash, block in self._writing.items():
            self._pool.register(block, block_hash)
        self._pool.release(self._writing.values())
        self._pool.release(self._reading)
        self._writing, self._reading = {}, []

    def has(self, block_hash: BlockHash) -> bool:
        return self._pool.lookup(block_hash) is not None

    def is_coming(self, block_hash: BlockHash) -> bool:
        """Returns whether the plan that is being made writes it."""
        return block_hash in self._writing

    def read(self, block_hash: BlockHash) -> int:
        """Returns the slot of a snapshot that exists, and keeps it unchanged until the next plan."""
        block = self._pool.lookup(block_hash)
        assert block is not None, "the caller has looked"
        self._pool.share((block,))
        self._reading.append(block)
        return self._first_slot + block

    def write(self, block_hash: BlockHash) -> int | None:
        """Returns the slot for a new snapshot, of the one that was not used for longest; None if it exists already, or
        this plan uses all slots."""
        if self.has(block_hash) or self.is_coming(block_hash) or not self._pool.num_free:
            return None
        (block,) = self._pool.take(1)
        self._writing[block_hash] = block
        return self._first_slot + block

    def note(self, block_hash: BlockHash) -> None:
        """Remembers a prefix that was computed."""
        self._known[block_hash] = None
        self._num_noted += 1
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    def count_known(self, hashes: Iterable[BlockHash]) -> int:
        """Returns how many of the hashes, from the first on, are of prefixes that were computed."""
        count = 0
        for block_hash in hashes:
            if block_hash not in self._known:
                break
            count += 1
        return count

    def forget(self, hashes: Iterable[BlockHash]) -> None:
        """Drops the snapshots of prefixes whose states cannot be trusted."""
        for block_hash in hashes:
            if (block := self._writing.pop(block_hash, None)) is not None:
                self._pool.release((block,))
            elif (block := self._pool.lookup(block_hash)) is not None:
                self._pool.forget(block)

    def forget_all(self) -> None:
        self._pool.forget_all()
        self._known.clear()

    def check_invariants(self) -> None:
        """Raises AssertionError when the books contradict themselves. For tests only."""
        self._pool.check_invariants([self._reading, self._writing.values()])


def boundaries(num_known: int, num_cached: int, num_blocks: int) -> Iterator[int]:
    """Yields the block boundaries, as numbers of blocks, after which a prompt leaves snapshots: where it parts from
    prompts before it, and its last one."""
    if num_cached < num_known < num_blocks:
        yield num_known
    if num_blocks > num_cached:
        yield num_blocks
