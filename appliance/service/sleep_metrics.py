"""Figures of sleep: whether the engine sleeps, and what the last sleep and waking took."""

from typing import Final

from appliance.engine.sleep_messages import SleepStats
from appliance.service.metric import Metric

_AWAKE: Final = "awake"
_BY_LEVEL: Final = {1: "weights_offloaded", 2: "discard_all"}  # vLLM's words

SLEEP_METRICS = (
    Metric(
        "engine_sleep_state",
        "gauge",
        "1 for what it is: awake, asleep with weights on the host (weights_offloaded), or without (discard_all)",
        "engine_sleep_state",
        ("sleep_state",),
    ),
    Metric(
        "sleep_seconds",
        "gauge",
        "What the last sleep took (sleep), and bringing the last part back (wake)",
        None,
        ("phase",),
    ),
)


def sleep_gauges(stats: SleepStats | None) -> dict[tuple[str, ...], float]:
    """Returns the gauges by metric and label value; nothing where the engine cannot sleep."""
    if stats is None:
        return {}
    state = _BY_LEVEL[stats.level] if stats.asleep else _AWAKE
    gauges: dict[tuple[str, ...], float] = {
        ("engine_sleep_state", each): float(each == state) for each in (_AWAKE, *_BY_LEVEL.values())
    }
    return gauges | {("sleep_seconds", "sleep"): stats.sleep_s, ("sleep_seconds", "wake"): stats.wake_s}
