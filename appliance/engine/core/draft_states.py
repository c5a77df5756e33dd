"""Slots for the recurrent states before each draft, so that a sequence goes on from the last one that was accepted."""

from collections.abc import Iterable

from appliance.engine.core.sequence import Sequence
from appliance.engine.step import StateMoves


class DraftStates:
    """A bounded pool of slots. A plan writes the slots that it takes. The next one may read one of them, which
    therefore is free only for the plan after that: `settle` begins a plan."""

    def __init__(self, num_slots: int, first_slot: int) -> None:
        self._first_slot = first_slot
        self._num_slots = num_slots
        self._free = list(range(first_slot + num_slots - 1, first_slot - 1, -1))
        self._reading: list[int] = []  # by the plan that is being made

    @property
    def num_free(self) -> int:
        return len(self._free)

    def settle(self) -> None:
        """Begins a plan: what the last one read may be overwritten."""
        self._free += self._reading
        self._reading = []

    def take(self, sequence: Sequence, moves: StateMoves | None, end: int, num_drafts: int) -> StateMoves:
        """Returns `moves`, which also leave the states before each draft of the sequence: after `end` tokens, and so
        on. The caller has asked for free slots."""
        sequence.draft_slots = [self._free.pop() for _ in range(num_drafts)]
        left = () if moves is None else moves.leaves
        before_drafts = ((end + ahead, slot) for ahead, slot in enumerate(sequence.draft_slots))
        return StateMoves(None if moves is None else moves.resumes_from, (*left, *before_drafts))

    def keep(self, sequence: Sequence, num_accepted: int) -> None:
        """Lets the sequence go on from the states after so many drafts; after all of them, they are its row's own."""
        slots, sequence.draft_slots = sequence.draft_slots, []
        sequence.resumes_from = slots.pop(num_accepted) if num_accepted < len(slots) else None
        self._free += slots

    def read(self, slot: int) -> None:
        """Takes back a slot that the plan that is being made reads; slots of snapshots are none of these."""
        if slot >= self._first_slot:
            self._reading.append(slot)

    def release(self, sequence: Sequence) -> None:
        """Takes back what a sequence holds that leaves its row."""
        self._free += self._held(sequence)
        sequence.draft_slots = []

    def check_invariants(self, sequences: Iterable[Sequence]) -> None:
        """Raises AssertionError when the books contradict themselves. For tests only."""
        every = [*self._free, *self._reading, *(slot for each in sequences for slot in self._held(each))]
        assert sorted(every) == [*range(self._first_slot, self._first_slot + self._num_slots)], "a slot leaked"

    def _held(self, sequence: Sequence) -> list[int]:
        resumes_from = sequence.resumes_from
        is_own = resumes_from is not None and resumes_from >= self._first_slot
        return [*sequence.draft_slots, resumes_from] if is_own and resumes_from is not None else [*sequence.draft_slots]
