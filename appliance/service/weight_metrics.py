"""Figures of the model's weights: which version serves, and what the last change took."""

from appliance.engine.weight_messages import WeightStats
from appliance.service.metric import Metric

WEIGHT_METRICS = (
    Metric(
        "weights_version", "gauge", "How often the weights were replaced since the engine started; 0: the plan's", None
    ),
    Metric(
        "weights_info",
        "gauge",
        "1 for the weights that replaced the plan's, by their digest",
        None,
        ("sha256", "label"),
    ),
    Metric(
        "weight_update_seconds",
        "gauge",
        "What the last change of weights took: reading, waiting for open requests, and while no step ran",
        None,
        ("phase",),
    ),
)


def weight_gauges(stats: WeightStats | None) -> dict[tuple[str, ...], float]:
    """Returns the gauges by metric and label values; nothing where weights cannot be replaced."""
    if stats is None:
        return {}
    gauges: dict[tuple[str, ...], float] = {("weights_version",): float(stats.version)}
    if stats.digest is None:
        return gauges
    seconds = {"staging": stats.staging_s, "waiting": stats.waiting_s, "commit": stats.commit_s}
    gauges |= {("weight_update_seconds", phase): value for phase, value in seconds.items()}
    return gauges | {("weights_info", stats.digest, stats.label or ""): 1.0}
