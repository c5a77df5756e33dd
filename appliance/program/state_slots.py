"""The numbers of the slots of recurrent states: one for each row of the runner, a spare one, the snapshots, then those
after drafts."""


def num_slots(num_rows: int, num_snapshots: int, num_draft_states: int = 0) -> int:
    return num_rows + 1 + num_snapshots + num_draft_states


def spare_slot(num_rows: int) -> int:
    """Returns the slot that takes what nothing will read."""
    return num_rows


def first_snapshot(num_rows: int) -> int:
    return num_rows + 1


def first_draft_state(num_rows: int, num_snapshots: int) -> int:
    return num_slots(num_rows, num_snapshots)
