"""The pulse of a loop: by it, a step that takes long is told from one that never ends."""


class Pulse:
    """The step that runs, and since when (clock seconds; 0 between steps); since when the loop is in a turn, of which
    the step is a part; and whether requests are held back. Any thread may read it at any time."""

    __slots__ = ("is_paused", "since", "step", "turn")

    def __init__(self) -> None:
        self.step = 0
        self.since = self.turn = 0.0
        self.is_paused = False
