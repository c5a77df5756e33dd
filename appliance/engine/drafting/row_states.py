"""Where the recurrent states of a draft model's rows lie."""

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.step import StateMoves
from appliance.program.state_slots import first_draft_state


class RowStates:
    """The states after each of a row's last passes, so that it goes on from the last token that was said. A row has
    `num_slots` slots: one that it begins from, and one for each pass."""

    def __init__(self, config: SchedulerConfig, num_slots: int) -> None:
        self._first = first_draft_state(config.max_num_seqs, 0)
        self._num_slots = num_slots
        self._after: dict[int, dict[int, int]] = {}  # by row: the slot by how many tokens were read

    @property
    def most_passes(self) -> int:
        return self._num_slots - 1

    def put(self, row: int) -> None:
        """Begins a row, which has read nothing."""
        self._after[row] = {}

    def drop(self, row: int) -> None:
        self._after.pop(row, None)

    def begin(self, row: int, most: int) -> int:
        """Returns after how many tokens, `most` at most, the row has a state; its others are forgotten."""
        kept = max((count for count in self._after[row] if count <= most), default=0)
        self._after[row] = {count: slot for count, slot in self._after[row].items() if count == kept}
        return kept

    def moves(self, row: int, start: int, end: int) -> StateMoves:
        """Returns the moves of a chunk that begins with the state after `start` tokens, and leaves the one after
        `end`."""
        own, first = self._after[row], self._first + row * self._num_slots
        resumes_from = own.get(start)
        slot = next(slot for slot in range(first, first + self._num_slots) if slot not in own.values())
        own[end] = slot
        return StateMoves(resumes_from, ((end, slot),))
