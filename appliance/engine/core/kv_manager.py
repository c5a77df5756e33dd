"""The KV blocks that each sequence holds: a block table for each group of caches, all over one pool.

The tables of a sequence grow together: block i of each is for the same tokens. A group with a sliding window releases
blocks that left the window; their entries in its table stay, with numbers that mean nothing. A group with full
attention keeps all blocks. A model with recurrent states begins from a cached prefix only where a snapshot of them is.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Many
from dataclasses import replace

from appliance.engine.core.block_pool import BlockHash, BlockName, BlockPool
from appliance.engine.core.cached_prefix import CachedPrefix
from appliance.engine.core.draft_states import DraftStates
from appliance.engine.core.prefix_cache import Hasher, PrefixNamespace
from appliance.engine.core.sequence import Sequence
from appliance.engine.core.snapshots import Snapshots, boundaries
from appliance.engine.given_embeds import digest_of
from appliance.engine.step import StateMoves
from appliance.program.kv_blocks import blocks_held


class KvManager:
    """`hasher` None turns prefix caching off. `windows`: the window of each group; None for full attention.
    `snapshots`: those of a model with states whose prefixes are cached. `draft_states`: of one whose drafts are
    verified."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        hasher: Hasher | None,
        windows: Many[int | None] = (None,),
        snapshots: Snapshots | None = None,
        *,
        has_states: bool = False,
        draft_states: DraftStates | None = None,
    ) -> None:
        self.pool = BlockPool(num_blocks, max(1, len(windows)))
        self.block_size = block_size
        self.num_groups = len(windows)
        self._windows = windows
        self._windowed = [(group, window) for group, window in enumerate(windows) if window is not None]
        self._whole = [group for group, window in enumerate(windows) if window is None]
        self._hasher = hasher
        self.weights: str | None = None  # a digest of those that replaced the planned ones, set while nothing is open
        self.snapshots = snapshots
        self.has_states = has_states
        self.draft_states = draft_states
        self._nothing = CachedPrefix(0, [[] for _ in windows], [0] * self.num_groups)
        self._looked: tuple[Sequence, int, int, int] | None = None  # the last lookup: sequence, its tokens, versions
        self._hits = self._nothing  # the result of that lookup

    @property
    def prefix_caching(self) -> bool:
        return self._hasher is not None

    def blocks_for(self, num_tokens: int) -> int:
        """Returns how many blocks of each group hold so many tokens."""
        return -(-num_tokens // self.block_size)

    def missing(self, sequence: Sequence, num_tokens: int) -> int:
        """Returns how many blocks to add, of all groups, so that the sequence can hold `num_tokens`."""
        return self.num_groups * max(0, self.blocks_for(num_tokens) - sequence.num_blocks)

    def room(self, sequence: Sequence, num_free: int) -> int:
        """Returns how many tokens the sequence can hold if it takes what it can use of `num_free` blocks."""
        return (sequence.num_blocks + num_free // max(1, self.num_groups)) * self.block_size

    def needed(self, num_tokens: int, chunk: int = 1) -> int:
        """Returns the most blocks that `num_tokens` hold at once if `chunk` of them run in one step."""
        return blocks_held(self._windows, self.block_size, num_tokens, chunk)

    def still_needed(self, sequence: Sequence, chunk: int) -> int:
        """Returns how many more blocks all known tokens of the sequence need, in chunks of `chunk` tokens."""
        blocks = self.blocks_for(len(sequence.tokens))
        needed = len(self._whole) * max(0, blocks - sequence.num_blocks)
        for group, window in self._windowed:
            most = blocks_held((window,), self.block_size, len(sequence.tokens), chunk)
            held = sequence.num_blocks - sequence.num_dropped[group]
            needed += max(0, min(most - held, blocks - sequence.num_blocks))
        return needed

    def cached_prefix(self, sequence: Sequence) -> CachedPrefix:
        """Returns the longest cached prefix of a sequence that holds no blocks. Callers must not change it.

        The last result is kept: several calls in each step are for the same first waiting sequence.
        """
        if self._hasher is None:
            return self._nothing
        version = 0 if self.snapshots is None else self.snapshots.version
        looked = (sequence, len(sequence.tokens), self.pool.version, version)
        if looked != self._looked:
            self._looked, self._hits = looked, self._find(sequence)
        return self._hits

    def no_prefix(self) -> CachedPrefix:
        return self._nothing

    def _find(self, sequence: Sequence) -> CachedPrefix:
        """Looks for the longest prefix of which full groups have all blocks, others those in their windows, and states
        a snapshot."""
        tables: list[list[int]] = [[] for _ in self._windows]
        num_blocks = self._in_windows(sequence, self._in_whole(sequence, tables))
        num_known = 0
        if self.snapshots is not None:
            num_known = self.snapshots.count_known(self._hashes(sequence))
            num_blocks = self._with_snapshot(sequence, num_blocks, self.snapshots)
        if num_blocks == 0:
            return replace(self._nothing, num_known=num_known)
        dropped = self._dropped(min(num_blocks * self.block_size, len(sequence.tokens) - 1))
        for group in self._whole:
            del tables[group][num_blocks:]
        for group, _ in self._windowed:
            first = dropped[group]
            found = (self.lookup(sequence, group, index) for index in range(first, num_blocks))
            tables[group] = [0] * first + [block for block in found if block is not None]
        return CachedPrefix(num_blocks, tables, dropped, num_known)

    def _with_snapshot(self, sequence: Sequence, end: int, snapshots: Snapshots) -> int:
        """Returns the last block index, up to `end`, at which there is a snapshot, and what the windows reach before
        it. The last token is always computed, so it must come after the snapshot."""
        end = min(end, self._num_whole(sequence))
        while end > 0:
            if not snapshots.has(self._hash(sequence, end - 1)):
                end -= 1
                continue
            reached = self._in_windows(sequence, end)
            if reached == end:
                break
            end = reached
        return end

    def _num_whole(self, sequence: Sequence) -> int:
        """Returns how many whole blocks the sequence has before its last token."""
        return (len(sequence.tokens) - 1) // self.block_size

    def _hashes(self, sequence: Sequence) -> Iterator[BlockHash]:
        return (self._hash(sequence, index) for index in range(self._num_whole(sequence)))

    def _in_whole(self, sequence: Sequence, tables: list[list[int]]) -> int:
        """Returns how many first blocks all full groups have, and adds them to the groups' tables."""
        end = len(sequence.tokens) // self.block_size
        for index in range(end if self._whole else 0):
            for group in self._whole:
                block = self.lookup(sequence, group, index)
                if block is None:
                    return index
                tables[group].append(block)
        return end

    def _in_windows(self, sequence: Sequence, end: int) -> int:
        """Returns the last block index, up to `end`, before which all windowed groups have what their windows reach."""
        last = len(sequence.tokens) - 1
        dropped, index = self._dropped(min(end * self.block_size, last)), end - 1
        while self._windowed and index >= min(dropped[group] for group, _ in self._windowed):
            for group, _ in self._windowed:
                if index >= dropped[group] and self.lookup(sequence, group, index) is None:
                    end, dropped = index, self._dropped(min(index * self.block_size, last))
                    break
            index -= 1
        return end

    def is_coming(self, sequence: Sequence, num_hits: int, prefills: list[Sequence]) -> bool:
        """Returns whether a running prompt has still to store the block after a waiting sequence's cached prefix."""
        if self._hasher is None or num_hits >= len(sequence.tokens) // self.block_size:
            return False
        if self.snapshots is not None:
            return self._snapshot_is_coming(sequence, num_hits, prefills, self.snapshots)
        name = self._hash(sequence, num_hits)
        return any(
            other.num_registered <= num_hits < len(other.tokens) // self.block_size
            and self._hash(other, num_hits) == name
            for other in prefills
        )

    def _snapshot_is_coming(
        self, sequence: Sequence, num_hits: int, prefills: list[Sequence], snapshots: Snapshots
    ) -> bool:
        """Returns whether this step, or a later one of a running prompt, leaves a snapshot in the sequence's prompt."""
        num_whole = self._num_whole(sequence)
        if any(snapshots.is_coming(self._hash(sequence, index)) for index in range(num_hits, num_whole)):
            return True
        return any(
            num_hits < boundary <= num_whole and self._hash(sequence, boundary - 1) == self._hash(other, boundary - 1)
            for other in prefills
            for boundary in other.boundaries
        )

    def num_free_after(self, shared: Iterable[int]) -> int:
        """Returns how many blocks stay free if these are shared (some of them are free now)."""
        return self.pool.num_free - sum(self.pool.references(block) == 0 for block in shared)

    def adopt(self, sequence: Sequence, prefix: CachedPrefix) -> None:
        """Gives the cached prefix to a sequence. The last token is always computed, because its logits are needed."""
        self.pool.share(prefix.held())
        sequence.tables = [list(table) for table in prefix.tables]
        sequence.num_dropped = list(prefix.num_dropped)
        sequence.num_blocks = sequence.num_registered = prefix.num_blocks
        sequence.num_computed = min(prefix.num_blocks * self.block_size, len(sequence.tokens) - 1)
        if self.snapshots is not None:
            if prefix.num_blocks:
                sequence.resumes_from = self.snapshots.read(self._hash(sequence, prefix.num_blocks - 1))
            sequence.boundaries = [*boundaries(prefix.num_known, prefix.num_blocks, self._num_whole(sequence))]

    def move_states(self, sequence: Sequence, end: int) -> StateMoves | None:
        """Returns from which snapshot the chunk up to `end` begins, and which it leaves; None if neither."""
        resumes_from, sequence.resumes_from = sequence.resumes_from, None
        if resumes_from is not None and self.draft_states is not None:
            self.draft_states.read(resumes_from)
        left = []
        while self.snapshots is not None and sequence.boundaries and sequence.boundaries[0] * self.block_size <= end:
            boundary = sequence.boundaries.pop(0)
            slot = self.snapshots.write(self._hash(sequence, boundary - 1))
            if slot is not None:
                left.append((boundary * self.block_size, slot))
        return StateMoves(resumes_from, tuple(left)) if left or resumes_from is not None else None

    def move_states_of_drafts(self, sequence: Sequence, end: int, num_drafts: int) -> StateMoves | None:
        """Returns moves like `move_states`, which also leave the states before each draft; `end`: of the tokens before
        the drafts. The caller has asked for free slots."""
        moves = self.move_states(sequence, end)
        return moves if self.draft_states is None else self.draft_states.take(sequence, moves, end, num_drafts)

    def settle(self) -> None:
        """Begins a plan: what the last one read of states may be overwritten, and what it wrote can be found."""
        if self.snapshots is not None:
            self.snapshots.settle()
        if self.draft_states is not None:
            self.draft_states.settle()

    def slide(self, sequence: Sequence) -> None:
        """Releases the blocks that no later token will attend to."""
        for group, window in self._windowed:
            first = self._first_seen(window, sequence.num_computed)
            if first > sequence.num_dropped[group]:
                self.pool.release(sequence.tables[group][sequence.num_dropped[group] : first])
                sequence.num_dropped[group] = first

    def can_fork(self, leader: Sequence, sequence: Sequence) -> bool:
        """Returns whether the leader still holds all blocks that the last prompt token attends to. Its states are past
        that token, so with states there are no forks: a sequence begins from a snapshot."""
        if self.has_states:
            return False
        seen = self._dropped(sequence.num_prompt - 1)
        return all(dropped <= first for dropped, first in zip(leader.num_dropped, seen, strict=True))

    def fork(self, leader: Sequence, sequence: Sequence) -> list[tuple[int, int]]:
        """Shares the leader's prompt blocks. Returns the (source, destination) copies of the partial ones, if any.

        It needs one free block a group when the prompt does not end on a block boundary.
        """
        num_full = sequence.num_prompt // self.block_size
        sequence.tables = [table[:num_full] for table in leader.tables]
        sequence.num_dropped = self._dropped(sequence.num_prompt - 1)
        for table, dropped in zip(sequence.tables, sequence.num_dropped, strict=True):
            self.pool.share(table[dropped:])
        sequence.num_blocks = num_full
        sequence.block_hashes = leader.block_hashes[:num_full]
        sequence.num_registered = min(num_full, leader.num_registered)
        sequence.num_computed = sequence.num_prompt - 1
        if sequence.num_prompt % self.block_size == 0:
            return []
        copies = self.grow(sequence, sequence.num_prompt)
        return [(table[num_full], copy) for table, (copy,) in zip(leader.tables, copies, strict=True)]

    def grow(self, sequence: Sequence, num_tokens: int) -> tuple[tuple[int, ...], ...]:
        """Adds the missing blocks to each group's table and returns them; the caller has checked that they are free."""
        count = self.blocks_for(num_tokens) - sequence.num_blocks
        if count <= 0:
            return ()
        sequence.num_blocks += count
        taken = []
        for group, table in enumerate(sequence.tables):
            blocks = self.pool.take(count, group)
            table += blocks
            taken.append(tuple(blocks))
        return tuple(taken)

    def register(self, sequence: Sequence) -> None:
        """Puts the full blocks that are computed, or certain to be, into the prefix cache.

        This happens before the step runs: each layer stores all keys and values of a step before its attention reads
        them, so a sequence scheduled later in the same step may already share them.
        """
        if self._hasher is None:
            return
        for index in range(sequence.num_registered, sequence.num_verified // self.block_size):
            block_hash = self._hash(sequence, index)
            for group, table in enumerate(sequence.tables):
                if index >= sequence.num_dropped[group]:
                    self.pool.register(table[index], _name(group, block_hash))
            if self.snapshots is not None:
                self.snapshots.note(block_hash)
            sequence.num_registered = index + 1

    def release(self, sequence: Sequence, *, trusted: bool = True) -> None:
        """Releases all blocks, last first, so that among blocks of equal age the end of a prefix is reused first.

        With `trusted` false the blocks are removed from the prefix cache.
        """
        held = self._deepest_first(sequence)
        if not trusted:
            self._forget(sequence, held)
        self.pool.release(held)
        sequence.tables = []
        sequence.num_dropped = []
        sequence.num_blocks = 0
        sequence.num_registered = 0
        sequence.num_computed = 0
        if self.draft_states is not None:
            self.draft_states.release(sequence)
        sequence.resumes_from = None
        sequence.boundaries = []

    def reset(self, *, gives_back: bool = False) -> bool:
        """Empties the prefix cache. gives_back: so are the blocks, whose memory is given back. Returns False, and
        changes nothing, while any block is used."""
        if self.pool.num_used:
            return False
        self.pool.forget_all()
        if gives_back:
            self.pool.forget_resident()
        if self.snapshots is not None:
            self.snapshots.forget_all()
        return True

    def held(self, sequence: Sequence) -> Iterator[list[int]]:
        """Yields the blocks of each group that the sequence holds."""
        for table, dropped in zip(sequence.tables, sequence.num_dropped, strict=True):
            yield table[dropped:]

    def _deepest_first(self, sequence: Sequence) -> list[int]:
        if self.num_groups == 1:
            return sequence.tables[0][sequence.num_dropped[0] :][::-1]
        tables = list(zip(sequence.tables, sequence.num_dropped, strict=True))
        depths = range(sequence.num_blocks - 1, -1, -1)
        return [table[index] for index in depths for table, dropped in tables if index >= dropped]

    def _first_seen(self, window: int, position: int) -> int:
        """Returns the index of the first block that a token at `position` attends to."""
        return max(0, position - window + 1) // self.block_size

    def _dropped(self, position: int) -> list[int]:
        """Returns how many first blocks of each group no token from `position` on attends to."""
        dropped = [0] * self.num_groups
        for group, window in self._windowed:
            dropped[group] = self._first_seen(window, position)
        return dropped

    def _forget(self, sequence: Sequence, held: list[int]) -> None:
        """Removes blocks from the prefix cache. Released ones go by hash, as their numbers may be reused by now."""
        if self.snapshots is not None:
            self.snapshots.forget(sequence.block_hashes)
        for block in held:
            self.pool.forget(block)
        for group, dropped in enumerate(sequence.num_dropped):
            for block_hash in sequence.block_hashes[:dropped]:
                block_of_name = self.pool.lookup(_name(group, block_hash))
                if block_of_name is not None:
                    self.pool.forget(block_of_name)

    def lookup(self, sequence: Sequence, group: int, index: int) -> int | None:
        """Returns the cached block `index` of a group that a sequence would have; None if there is none."""
        return self.pool.lookup(_name(group, self._hash(sequence, index)))

    def _first_hash(self, sequence: Sequence, token_ids: Many[int], embeds: bytes | None) -> BlockHash:
        assert self._hasher is not None
        request = sequence.request
        adapter = None if request.adapter is None else request.adapter.namespace
        namespace = PrefixNamespace(adapter, request.message.cache_salt, self.weights)
        return self._hasher.first(namespace, token_ids, embeds)

    def _hash(self, sequence: Sequence, index: int) -> BlockHash:
        hashes = sequence.block_hashes
        assert self._hasher is not None
        while len(hashes) <= index:
            at = len(hashes) * self.block_size
            token_ids, given = sequence.tokens[at : at + self.block_size], sequence.request.message.prompt_embeds
            embeds = None if given is None else digest_of(given, at, at + self.block_size)
            if hashes:
                hashes.append(self._hasher.extend(hashes[-1], token_ids, embeds))
            else:
                hashes.append(self._first_hash(sequence, token_ids, embeds))
        return hashes[index]


def _name(group: int, block_hash: BlockHash) -> BlockName:
    """Returns the name of a block's content: these tokens, in the layers of this group."""
    return block_hash if group == 0 else (group, block_hash)
