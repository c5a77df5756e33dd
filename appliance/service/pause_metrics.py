"""Figures of pauses: whether the engine holds requests back."""

from appliance.engine.pause_messages import PAUSE_MODES, PauseMode
from appliance.service.metric import Metric

PAUSE_METRICS = (
    Metric(
        "engine_paused",
        "gauge",
        "1 for how the engine is paused: abort, wait or keep; 0 for the others, and all while it is not",
        None,
        ("mode",),
    ),
)


def pause_gauges(mode: PauseMode | None) -> dict[tuple[str, ...], float]:
    """Returns the gauges by metric and label value."""
    return {("engine_paused", each): float(each == mode) for each in PAUSE_MODES}
