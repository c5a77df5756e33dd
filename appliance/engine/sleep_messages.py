"""What an engine that can sleep is asked, and tells of it."""

from typing import Final, Literal

import msgspec

SleepTag = Literal["weights", "kv_cache"]
SLEEP_TAGS: Final[tuple[SleepTag, ...]] = ("weights", "kv_cache")
SleepLevel = Literal[1, 2]


class SleepStats(msgspec.Struct, frozen=True, kw_only=True):
    """asleep: the parts without memory; none while the engine serves. level: of the last sleep, 0 before any. sleep_s,
    wake_s: what putting away and bringing back took, the last time."""

    asleep: tuple[SleepTag, ...] = ()
    level: int = 0
    sleep_s: float = 0.0
    wake_s: float = 0.0
