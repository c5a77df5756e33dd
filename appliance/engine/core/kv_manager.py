"""The KV blocks that each sequence holds.

One block table serves all layers. If every layer has a sliding window, blocks that left the widest window are released;
their entries in the table stay, with numbers that mean nothing. One layer with full attention keeps all blocks.
"""

from appliance.engine.core.block_pool import BlockPool
from appliance.engine.core.prefix_cache import Hasher
from appliance.engine.core.sequence import Sequence


class KvManager:
    """`hasher` None turns prefix caching off. `window`: the widest sliding window; None if a layer has none."""

    def __init__(self, num_blocks: int, block_size: int, hasher: Hasher | None, window: int | None = None) -> None:
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self._window = window
        self._hasher = hasher
        self._looked: tuple[Sequence, int, int] | None = None  # the last lookup: sequence, its tokens, pool version
        self._hits: list[int] = []  # the result of that lookup

    @property
    def prefix_caching(self) -> bool:
        return self._hasher is not None

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def missing(self, sequence: Sequence, num_tokens: int) -> int:
        """Returns how many blocks to add so that the sequence can hold `num_tokens`."""
        return max(0, self.blocks_for(num_tokens) - len(sequence.block_table))

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        """Returns the blocks of the longest cached prefix of a sequence that holds none. Callers must not change it.

        The last result is kept: several calls in each step are for the same first waiting sequence.
        """
        if self._hasher is None:
            return []
        looked = (sequence, len(sequence.tokens), self.pool.version)
        if looked != self._looked:
            self._looked, self._hits = looked, self._find(sequence)
        return self._hits

    def _find(self, sequence: Sequence) -> list[int]:
        hits = []
        for index in range(len(sequence.tokens) // self.block_size):
            block = self.pool.lookup(self._hash(sequence, index))
            if block is None:
                break
            hits.append(block)
        return hits

    def is_coming(self, sequence: Sequence, num_hits: int, prefills: list[Sequence]) -> bool:
        """Returns whether a running prompt has still to store the block after a waiting sequence's cached prefix."""
        if self._hasher is None or num_hits >= len(sequence.tokens) // self.block_size:
            return False
        name = self._hash(sequence, num_hits)
        return any(
            other.num_registered <= num_hits < len(other.tokens) // self.block_size
            and self._hash(other, num_hits) == name
            for other in prefills
        )

    def num_free_after(self, hits: list[int]) -> int:
        """Returns how many blocks stay free if the hits are taken (some of them are free now)."""
        return self.pool.num_free - sum(self.pool.references(block) == 0 for block in hits)

    def adopt(self, sequence: Sequence, hits: list[int]) -> None:
        """Gives the cached prefix to a sequence. The last token is always computed, because its logits are needed."""
        self.pool.share(hits)
        sequence.block_table = list(hits)
        sequence.num_registered = len(hits)
        sequence.num_computed = min(len(hits) * self.block_size, len(sequence.tokens) - 1)

    def slide(self, sequence: Sequence) -> None:
        """Releases the blocks that no later token will attend to."""
        first = self._first_seen(sequence.num_computed)
        if first > sequence.num_dropped:
            self.pool.release(sequence.block_table[sequence.num_dropped : first])
            sequence.num_dropped = first

    def can_fork(self, leader: Sequence, sequence: Sequence) -> bool:
        """Returns whether the leader still holds all blocks that the last prompt token attends to."""
        return leader.num_dropped <= self._first_seen(sequence.num_prompt - 1)

    def fork(self, leader: Sequence, sequence: Sequence) -> tuple[int, int] | None:
        """Shares the leader's prompt blocks. Returns the (source, destination) copy of the last, partial one, if any.

        It needs one free block when the prompt does not end on a block boundary.
        """
        num_full = sequence.num_prompt // self.block_size
        sequence.block_table = leader.block_table[:num_full]
        sequence.num_dropped = self._first_seen(sequence.num_prompt - 1)
        self.pool.share(sequence.block_table[sequence.num_dropped :])
        sequence.block_hashes = leader.block_hashes[:num_full]
        sequence.num_registered = min(num_full, leader.num_registered)
        sequence.num_computed = sequence.num_prompt - 1
        if sequence.num_prompt % self.block_size == 0:
            return None
        copy = self.pool.take(1)[0]
        sequence.block_table.append(copy)
        return leader.block_table[num_full], copy

    def grow(self, sequence: Sequence, num_tokens: int) -> tuple[int, ...]:
        """Adds the missing blocks and returns them; the caller has checked that they are free."""
        count = self.missing(sequence, num_tokens)
        if count == 0:
            return ()
        blocks = self.pool.take(count)
        sequence.block_table += blocks
        return tuple(blocks)

    def register(self, sequence: Sequence) -> None:
        """Puts the full blocks that are computed, or certain to be, into the prefix cache.

        This happens before the step runs: each layer stores all keys and values of a step before its attention reads
        them, so a sequence scheduled later in the same step may already share them.
        """
        if self._hasher is None:
            return
        for index in range(sequence.num_registered, sequence.num_verified // self.block_size):
            self.pool.register(sequence.block_table[index], self._hash(sequence, index))
            sequence.num_registered = index + 1

    def release(self, sequence: Sequence, *, trusted: bool = True) -> None:
        """Releases all blocks, last first, so that among blocks of equal age the end of a prefix is reused first.

        With `trusted` false the blocks are removed from the prefix cache.
        """
        held = sequence.block_table[sequence.num_dropped :]
        if not trusted:
            self._forget(sequence, held)
        self.pool.release(reversed(held))
        sequence.block_table = []
        sequence.num_dropped = 0
        sequence.num_registered = 0
        sequence.num_computed = 0

    def reset(self) -> bool:
        """Empties the prefix cache. Returns False, and changes nothing, while any block is used."""
        if self.pool.num_used:
            return False
        self.pool.forget_all()
        return True

    def _first_seen(self, position: int) -> int:
        """Returns the index of the first block that a token at `position` attends to."""
        return 0 if self._window is None else max(0, position - self._window + 1) // self.block_size

    def _forget(self, sequence: Sequence, held: list[int]) -> None:
        """Removes blocks from the prefix cache. Released ones go by hash, as their numbers may be reused by now."""
        for block in held:
            self.pool.forget(block)
        for index in range(min(sequence.num_dropped, len(sequence.block_hashes))):
            block_of_name = self.pool.lookup(sequence.block_hashes[index])
            if block_of_name is not None:
                self.pool.forget(block_of_name)

    def _hash(self, sequence: Sequence, index: int) -> int | bytes:
        hashes = sequence.block_hashes
        assert self._hasher is not None
        while len(hashes) <= index:
            at = len(hashes) * self.block_size
            parent = hashes[-1] if hashes else self._hasher.root(None, sequence.request.message.cache_salt)
            hashes.append(self._hasher.extend(parent, sequence.tokens[at : at + self.block_size]))
        return hashes[index]
