"""What a running server says of its engine's sleep, from its metrics."""

import re
from typing import Any, Final

_SAMPLE = re.compile(r"^appliance_(engine_sleep_state|sleep_seconds)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'\b(engine|sleep_state|phase)="(\w+)"')
_LEVELS: Final = {"weights_offloaded": 1, "discard_all": 2}


def read_sleep(metrics: str) -> dict[str, Any] | None:
    """Returns whether the engine sleeps, at which level, and the seconds of the last sleep and of waking; None if it
    cannot sleep, or was never asked to. Several replicas sleep while one does, which is named, and took as long as the
    slowest."""
    seconds = {"sleep": 0.0, "wake": 0.0}
    levels: dict[str, int] = {}  # by engine
    for name, given, value in _SAMPLE.findall(metrics):
        labels = dict(_LABEL.findall(given))
        if name == "sleep_seconds":
            seconds[labels["phase"]] = max(float(value), seconds[labels["phase"]])
        else:
            level = _LEVELS.get(labels["sleep_state"], 0) * (float(value) > 0)
            levels[labels["engine"]] = max(level, levels.get(labels["engine"], 0))
    if not seconds["sleep"]:
        return None
    told = {f"{phase}_s": round(taken, 3) for phase, taken in seconds.items()}
    highest = max(levels.values())
    found: dict[str, Any] = {"is_sleeping": highest > 0, "level": highest, **told}
    if len(levels) > 1:
        found["engines"] = levels
    return found


def sleep_text(status: dict[str, Any] | None) -> str | None:
    """Says whether the engine sleeps and what that took; None if there is nothing to say."""
    if status is None:
        return None
    if not status["is_sleeping"]:
        return f"awake, after {status['sleep_s']:.2f} s to sleep and {status['wake_s']:.2f} s to wake"
    asleep = f"asleep at level {status['level']}, in {status['sleep_s']:.2f} s; POST /wake_up brings it back"
    engines = status.get("engines", {})
    awake = [engine for engine, level in engines.items() if not level]
    if not awake:
        return asleep
    return f"{', '.join(f'engine {engine}' for engine in engines if engine not in awake)} of {len(engines)} {asleep}"
