"""What an engine that holds its requests back is asked, and tells of it."""

from typing import Final, Literal, get_args

PauseMode = Literal["abort", "wait", "keep"]
"""What becomes of open requests: they end with the reason abort, run to their end, or stop where they are."""

PAUSE_MODES: Final[tuple[PauseMode, ...]] = get_args(PauseMode)
