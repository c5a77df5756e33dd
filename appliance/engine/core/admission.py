"""Admission: which waiting sequences start to run, and on which blocks."""

from appliance.engine.core.books import Books
from appliance.engine.core.building import StepBuilder
from appliance.engine.core.cached_prefix import CachedPrefix
from appliance.engine.core.prefill import PrefillRules
from appliance.engine.core.sequence import Sequence, Status

MOST_HELD = 64  # waiting sequences that a step skips, because a running prompt is computing their next block
MOST_PASSED = 32  # sequences with adapters that may start before one that waits for a slot


class Admission:
    """Admits in policy order, as long as all known tokens of the next sequence fit in the free blocks.

    Blocks that running sequences still need for an answer of the usual length stay free.
    A sequence waits while a running prompt is computing its next prefix block; others may start before it.
    A sequence whose adapter has no slot, while running ones use all, waits as well. Others may start before it, but
    those with adapters only for a while, so that a slot falls free.
    A sequence starts from its longest cached prefix. The later ones of a request with n > 1 fork: they share the full
    prompt blocks of the first, copy the last, partial one, and run the last prompt token alone.
    A preempted sequence whose blocks lie in host memory takes them back, if that is cheaper than what is not cached.
    """

    def __init__(self, books: Books, rules: PrefillRules) -> None:
        self._books = books
        self._kv = books.kv
        self._rules = rules
        self.prefix_queries = 0  # tokens
        self.prefix_hits = 0  # tokens

    def admit(self, step: StepBuilder, prefills: list[Sequence], *, only_checks: bool = False) -> None:
        """Adds waiting sequences to the step. `prefills` run already; the blocks that they still need stay free.
        only_checks: those that check an adapter, which are first."""
        books = self._books
        if not books.num_waiting:
            return
        reserved = self._still_needed(prefills)
        growth = self._growth()
        held: list[Sequence] = []
        first_without_slot: Sequence | None = None
        while books.free_rows and step.budget > 0 and step.logits > 0 and (head := books.head()) is not None:
            if only_checks and not head.request.is_check:
                break
            if _leader_is_busy(head) or self._rules.must_let_pass(head, step):
                held.append(books.pop_head())
                continue
            if self._must_wait_for_slot(head, first_without_slot):
                first_without_slot = first_without_slot or head
                held.append(books.pop_head())
                continue
            if self._should_return(head):
                admitted = self._return(head, step, reserved + growth)
            elif self._can_fork(head):
                admitted = self._fork(head, step, reserved)
            else:
                hits = self.cached_prefix(head)
                if len(held) < MOST_HELD and self._is_coming(head, hits, prefills):
                    held.append(books.pop_head())
                    continue
                admitted = self._start(head, hits, step, reserved + growth)
            if not admitted:
                break
            if first_without_slot is not None and head.request.adapter is not None:
                first_without_slot.num_passed += 1
            if head.num_computed < len(head.tokens):
                prefills.append(head)
            reserved += self._still_needed([head])
            growth += self._growth_of(head)
        for sequence in held:
            books.wait(sequence)

    def make_way(self) -> None:
        """Preempts running sequences of a worse priority than the first waiting one, until that one fits."""
        running = self._books.running
        while (victim := self._books.last_idle()) is not None and (head := self._books.head()) is not None:
            if victim.request.message.priority <= head.request.message.priority:
                return
            prefills = [other for other in running if not other.has_run_prompt]
            start, shared = self._basis(head)
            growth = self._kv.num_groups * len(running)
            if self._books.free_rows and self._fits(head, start, shared, self._still_needed(prefills) + growth):
                return
            self._books.preempt(victim)

    def _must_wait_for_slot(self, sequence: Sequence, first_without: Sequence | None) -> bool:
        """Returns whether there is no slot for the sequence's adapter; or `first_without`, which waits for one before
        it, has been passed often."""
        adapter = sequence.request.adapter
        if adapter is None or sequence.request.is_check:
            return False
        is_due = first_without is not None and first_without.num_passed >= MOST_PASSED
        return is_due or not self._books.adapters.can_take(adapter)

    def cached_prefix(self, sequence: Sequence) -> CachedPrefix:
        """Returns the cached prefix; none for a request with prompt_logprobs, whose logits must be computed."""
        kv = self._kv
        return kv.no_prefix() if sequence.prompt_logprobs_left is not None else kv.cached_prefix(sequence)

    def _is_coming(self, sequence: Sequence, hits: CachedPrefix, prefills: list[Sequence]) -> bool:
        """Returns True while a running prompt computes the sequence's next block, so that it is not computed twice."""
        return sequence.prompt_logprobs_left is None and self._kv.is_coming(sequence, hits.num_blocks, prefills)

    def _start(self, sequence: Sequence, hits: CachedPrefix, step: StepBuilder, reserved: int) -> bool:
        """Admits the head on its longest cached prefix. Returns False if it must wait; then all after it wait too."""
        num_stored = hits.num_blocks * self._kv.block_size
        num_computed = min(num_stored, len(sequence.tokens) - 1)
        length = self._rules.length(sequence, num_computed, step)
        if length == 0 or not self._rules.may_stay_partial(sequence, num_computed + length, step):
            return False
        shared = list(hits.held())
        if not self._fits(sequence, num_computed, shared, reserved):
            if self._books.running:
                return False
            length = min(length, self._room_alone(hits.num_blocks, self._kv.num_free_after(shared)) - num_computed)
        self._books.take_row(self._books.pop_head())
        self._kv.adopt(sequence, hits)
        self._kv.grow(sequence, num_computed + length)
        if not sequence.has_output and sequence.prompt_logprobs_left is None:
            sequence.num_cached_tokens = num_computed
            self.prefix_queries += sequence.num_prompt
            self.prefix_hits += num_computed
        self._launch(sequence, length, num_stored, step)
        return True

    def _should_return(self, sequence: Sequence) -> bool:
        """Returns whether a sequence comes back from host memory, because that costs less than what is not cached."""
        swap = self._books.swap
        if swap is None or sequence.swapped is None:
            return False
        return swap.is_worth_loading(sequence, self._kv.cached_prefix(sequence).num_blocks * self._kv.block_size)

    def _return(self, sequence: Sequence, step: StepBuilder, reserved: int) -> bool:
        """Admits the head on what it has in host memory. Returns False if it must wait."""
        swap, swapped = self._books.swap, sequence.swapped
        assert swap is not None, "the caller has looked"
        assert swapped is not None, "the caller has looked"
        start = swapped.num_computed
        length = self._rules.length(sequence, start, step)
        if length == 0 or not self._rules.may_stay_partial(sequence, start + length, step):
            return False
        found = swap.find(sequence)
        if not self._fits(sequence, start, found.shared, reserved):
            if self._books.running:
                return False
            num_free = self._kv.num_free_after(found.shared) - sum(blocks.count(None) for blocks in found.blocks)
            length = min(length, self._room_alone(self._kv.blocks_for(start), num_free) - start)
        self._books.take_row(self._books.pop_head())
        move = swap.load(sequence, found)
        if move.num_places:
            step.loads.append(move)
        self._kv.grow(sequence, start + length)
        self._launch(sequence, length, start, step)
        return True

    def _fork(self, sequence: Sequence, step: StepBuilder, reserved: int) -> bool:
        """Admits the head on its leader's prompt blocks: only the last prompt token runs, for its logits."""
        if self._kv.pool.num_free < self._kv.num_groups + reserved:
            return False
        self._books.take_row(self._books.pop_head())
        step.block_copies += self._kv.fork(sequence.leader, sequence)
        sequence.num_cached_tokens = sequence.leader.num_cached_tokens
        self._launch(sequence, 1, sequence.num_prompt, step)
        return True

    def _launch(self, sequence: Sequence, length: int, num_stored: int, step: StepBuilder) -> None:
        if self._books.swap is not None:
            self._books.swap.drop(sequence, is_computed=True)  # one that came back has nothing there any more
        step.append_row(sequence)
        states = self._kv.move_states(sequence, sequence.num_computed + length)
        step.append(sequence, length, tuple(map(tuple, sequence.tables)), num_stored, states=states)
        self._rules.count(sequence, step)
        self._kv.register(sequence)

    def _can_fork(self, sequence: Sequence) -> bool:
        """The leader's prompt must be stored, not only scheduled: blocks are copied before a step runs."""
        leader = sequence.leader
        ready = leader is not sequence and leader.has_run_prompt and not sequence.has_output
        return ready and self._kv.can_fork(leader, sequence)

    def _basis(self, sequence: Sequence) -> tuple[int, list[int]]:
        """Returns how many tokens a waiting sequence need not compute, and the blocks with these that are there."""
        if self._books.swap is not None and sequence.swapped is not None:
            return sequence.swapped.num_computed, self._books.swap.find(sequence).shared
        hits = self._kv.cached_prefix(sequence)
        return min(hits.num_blocks * self._kv.block_size, len(sequence.tokens) - 1), list(hits.held())

    def _fits(self, sequence: Sequence, start: int, shared: list[int], reserved: int) -> bool:
        """Returns whether all known tokens fit in free blocks, in any chunks from token `start` on, beside the blocks
        that are `shared`, and `reserved` blocks stay free."""
        needed = self._kv.needed(len(sequence.tokens), self._rules.longest_chunk(sequence, start)) - len(shared)
        return needed <= self._kv.num_free_after(shared) - reserved

    def _room_alone(self, num_blocks: int, num_free: int) -> int:
        """Returns for how many tokens there are blocks while nothing else runs. Any sequence fits if its chunks are so
        small, because windows release blocks between two chunks."""
        return (num_blocks + num_free // max(1, self._kv.num_groups)) * self._kv.block_size

    def _growth(self) -> int:
        """Returns the blocks that running sequences will need. A sequence admitted on them would soon be preempted."""
        return sum(map(self._growth_of, self._books.running))

    def _growth_of(self, sequence: Sequence) -> int:
        """Returns the blocks still needed if the answer becomes as long as the recent mean; at least one a group."""
        length = min(sequence.stop_length, sequence.num_prompt + int(self._books.mean_output))
        return max(self._kv.num_groups, self._kv.needed(length) - self._kv.needed(len(sequence.tokens)))

    def _still_needed(self, prefills: list[Sequence]) -> int:
        kv, rules = self._kv, self._rules
        return sum(kv.still_needed(each, rules.longest_chunk(each, each.num_computed)) for each in prefills)


def _leader_is_busy(sequence: Sequence) -> bool:
    """Returns True while the leader has not computed the prompt that this sequence will share."""
    leader = sequence.leader
    return leader is not sequence and leader.status is not Status.FINISHED and not leader.has_output
