"""The pulse of a loop: by it, a step that takes long is told from one that never ends."""


class Pulse:
    """The step that runs, and since when (clock seconds; 0 between steps). Any thread may read it at any time."""

    __slots__ = ("since", "step")

    def __init__(self) -> None:
        self.step = 0
        self.since = 0.0
