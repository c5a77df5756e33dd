"""How sequences whose prompt has run take their place in a step."""

from appliance.engine.core.books import Books
from appliance.engine.core.building import StepBuilder
from appliance.engine.core.sequence import Sequence


class DecodeRules:
    """All decodes run before any prompt, in policy order. When blocks run out the last one that runs is preempted."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._kv = books.kv

    def schedule(self, step: StepBuilder) -> list[Sequence]:
        """Takes every running sequence whose prompt is done: one token is left to compute, or some more were forced.

        Returns the others, in policy order.
        """
        prefills: list[Sequence] = []
        running, block_size = self._books.running, self._kv.block_size
        index = 0
        while index < len(running):  # victims leave from the end, never from before `index`
            sequence = running[index]
            index += 1
            length = len(sequence.tokens) - sequence.num_computed
            if length != 1:
                if not sequence.has_run_prompt:
                    prefills.append(sequence)
                    continue
                length = min(length, step.budget)
            if step.budget == 0:
                break
            end = sequence.num_computed + length
            new_blocks: tuple[int, ...] = ()
            if end > len(sequence.block_table) * block_size:
                room = self._room_for(sequence, end)
                if room is None:
                    break
                new_blocks = room
            is_last = end + 1 >= sequence.stop_length
            if end == len(sequence.block_table) * block_size and not is_last:
                new_blocks += self._room_ahead(sequence, end + 1)
            step.append(sequence, length, new_blocks)
            step.num_going_on += length == 1 and not is_last and end < len(sequence.block_table) * block_size
        return prefills

    def _room_for(self, sequence: Sequence, num_tokens: int) -> tuple[int, ...] | None:
        """Blocks for so many tokens, from preempted sequences if need be; None when it was preempted itself."""
        kv, running = self._kv, self._books.running
        kv.slide(sequence)
        missing = kv.missing(sequence, num_tokens)
        while kv.pool.num_free < missing and running[-1] is not sequence:
            self._books.preempt(running[-1])
        if kv.pool.num_free < missing:
            self._books.preempt(sequence)
            return None
        return kv.grow(sequence, num_tokens)

    def _room_ahead(self, sequence: Sequence, num_tokens: int) -> tuple[int, ...]:
        """The next step's block, so that this step may go on (see StepPlan); none where others may need it now."""
        if self._kv.pool.num_free <= len(self._books.running):
            return ()
        self._kv.slide(sequence)
        return self._kv.grow(sequence, num_tokens)
