"""Schedules the decodes of a step: sequences whose prompt has run."""

import sys

from appliance.engine.core.books import Books
from appliance.engine.core.building import StepBuilder
from appliance.engine.core.sequence import Sequence
from appliance.engine.core.speculation import Speculation

NewBlocks = tuple[tuple[int, ...], ...]  # of each group, or nothing


class DecodeRules:
    """Runs all decodes before any prompt, in policy order. If blocks run out, it preempts the last running sequence.

    Of several steps at once each takes its part of the decodes, and none that another has.
    """

    def __init__(self, books: Books, speculation: Speculation | None = None, num_lanes: int = 1) -> None:
        self._books = books
        self._kv = books.kv
        self._speculation = speculation
        self._num_lanes = num_lanes

    def schedule(self, step: StepBuilder) -> list[Sequence]:
        """Takes every running sequence whose prompt has run: it has one token to compute, or more if some were forced.

        Returns the others, in policy order.
        """
        prefills: list[Sequence] = []
        running, block_size = self._books.running, self._kv.block_size
        if self._speculation is not None:
            most = min(step.logits - len(running), self._most_states())
            self._speculation.choose([each for each in running if each.has_run_prompt], most)
        index, left = 0, self._part() if self._num_lanes > 1 else len(running)
        while index < len(running):  # victims leave from the end, never from before `index`
            sequence = running[index]
            index += 1
            if not sequence.has_run_prompt:
                if sequence.num_computed < len(sequence.tokens):
                    prefills.append(sequence)
                continue
            if sequence.in_flight or not left:
                continue
            left -= 1
            budget = step.budget
            if budget == 0:
                break
            length = len(sequence.tokens) - sequence.num_computed
            if length > budget:
                length = budget
            end = sequence.num_computed + length
            room = sequence.num_blocks * block_size
            new_blocks: NewBlocks = ()
            if end > room:
                grown = self._room_for(sequence, end)
                if grown is None:
                    break
                new_blocks, room = grown, sequence.num_blocks * block_size
            if sequence.draft is not None:
                self._append_with_draft(step, sequence, length, new_blocks)
                continue
            is_last = end + 1 >= sequence.stop_length
            if end == room and not is_last:
                new_blocks = joined(new_blocks, self._room_ahead(sequence, end + 1))
                room = sequence.num_blocks * block_size
            states = None if sequence.resumes_from is None else self._kv.move_states(sequence, end)
            step.append(sequence, length, new_blocks, states=states)
            if length == 1 and end < room and not is_last:
                step.num_going_on += 1
        return prefills

    def _part(self) -> int:
        """Returns how many decodes a step takes, so that the steps that run at once have about as many."""
        num_decodes = sum(sequence.has_run_prompt for sequence in self._books.running)
        return -(-num_decodes // self._num_lanes)

    def _append_with_draft(self, step: StepBuilder, sequence: Sequence, length: int, new_blocks: NewBlocks) -> None:
        """Takes what fits of the draft while every running sequence keeps a token, a row of logits and its blocks."""
        kv, num_running = self._kv, len(self._books.running)
        draft, sequence.draft = sequence.draft, None
        assert draft is not None, "the caller has looked"
        end = sequence.num_computed + length
        spare_blocks = max(0, kv.pool.num_free - kv.num_groups * num_running)
        num_drafts = 0
        if end == len(sequence.tokens):
            num_drafts = min(
                len(draft.token_ids),
                sequence.stop_length - 1 - end,  # the last token is sampled, and never computed
                step.budget - length - num_running,
                step.logits - num_running,
                kv.room(sequence, spare_blocks) - end,
                self._most_states(),
            )
        if num_drafts < 1:
            step.append(sequence, length, new_blocks, states=kv.move_states(sequence, end))
            return
        new_blocks = joined(new_blocks, kv.grow(sequence, end + num_drafts))
        states = kv.move_states_of_drafts(sequence, end, num_drafts)
        step.append(sequence, length, new_blocks, draft=draft.cut(num_drafts), states=states)

    def _most_states(self) -> int:
        """Returns before how many drafts states can be kept."""
        draft_states = self._kv.draft_states
        return sys.maxsize if draft_states is None else draft_states.num_free

    def _room_for(self, sequence: Sequence, num_tokens: int) -> NewBlocks | None:
        """Returns new blocks to hold `num_tokens`, preempting others if needed; None if it was preempted itself, or
        must wait for those that a step has begun to run."""
        kv, books = self._kv, self._books
        kv.slide(sequence)
        missing = kv.missing(sequence, num_tokens)
        while kv.pool.num_free < missing and (victim := books.last_idle()) is not None and victim is not sequence:
            books.preempt(victim)
        if kv.pool.num_free < missing:
            if books.running[-1] is sequence:
                books.preempt(sequence)
            return None
        return kv.grow(sequence, num_tokens)

    def _room_ahead(self, sequence: Sequence, num_tokens: int) -> NewBlocks:
        """Returns the next step's blocks, so that it may go on (StepPlan.goes_on); none if others may need them."""
        if self._kv.pool.num_free <= self._kv.num_groups * len(self._books.running):
            return ()
        self._kv.slide(sequence)
        return self._kv.grow(sequence, num_tokens)


def joined(first: NewBlocks, second: NewBlocks) -> NewBlocks:
    """Appends the second blocks of each group to the first ones."""
    if not first or not second:
        return first or second
    return tuple(one + other for one, other in zip(first, second, strict=True))
