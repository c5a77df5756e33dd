"""What a running server says of its engine's sleep, from its metrics."""

import re
from typing import Any, Final

_SAMPLE = re.compile(
    r'^appliance_(engine_sleep_state|sleep_seconds)\{.*?\b(?:sleep_state|phase)="(\w+)".*\} (\S+)$', re.MULTILINE
)
_LEVELS: Final = {"weights_offloaded": 1, "discard_all": 2}


def read_sleep(metrics: str) -> dict[str, Any] | None:
    """Returns whether the engine sleeps, at which level, and the seconds of the last sleep and of waking; None if it
    cannot sleep, or was never asked to. Several replicas sleep while one does, as long as the slowest took."""
    found: dict[tuple[str, str], float] = {}
    for name, label, value in _SAMPLE.findall(metrics):
        found[name, label] = max(float(value), found.get((name, label), 0.0))
    if not found.get(("sleep_seconds", "sleep")):
        return None
    level = next((number for name, number in _LEVELS.items() if found["engine_sleep_state", name]), 0)
    seconds = {f"{phase}_s": round(found["sleep_seconds", phase], 3) for phase in ("sleep", "wake")}
    return {"is_sleeping": level > 0, "level": level, **seconds}


def sleep_text(status: dict[str, Any] | None) -> str | None:
    """Says whether the engine sleeps and what that took; None if there is nothing to say."""
    if status is None:
        return None
    if not status["is_sleeping"]:
        return f"awake, after {status['sleep_s']:.2f} s to sleep and {status['wake_s']:.2f} s to wake"
    return f"asleep at level {status['level']}, in {status['sleep_s']:.2f} s; POST /wake_up brings it back"
