"""Figures of experts that move between ranks."""

from collections.abc import Mapping

from appliance.engine.expert_messages import ExpertStats
from appliance.service.metric import Metric

EXPERT_METRICS = (
    Metric("expert_moves", "counter", "Places of ranks that got another expert"),
    Metric("expert_move_seconds", "counter", "Seconds between steps in which experts moved"),
    Metric("expert_rearrangements", "counter", "How often experts were placed anew by their load"),
    Metric(
        "expert_balancedness",
        "gauge",
        "The mean load of a rank divided by the largest, of the last steps (eplb_window_size); 1 if all have the same",
    ),
    Metric("expert_speed_up", "gauge", "How much faster steps were after experts moved; 0 while that is not measured"),
    Metric("expert_balancer_is_off", "gauge", "1 if experts move no more, since that made steps no faster"),
)
EXPERT_GAUGES = ("expert_balancedness", "expert_speed_up", "expert_balancer_is_off")


def expert_gauges(stats: ExpertStats | None) -> Mapping[str, float]:
    """Returns the gauges by metric; nothing where experts stay."""
    if stats is None:
        return {}
    return {
        "expert_balancedness": stats.balancedness,
        "expert_speed_up": stats.speed_up,
        "expert_balancer_is_off": float(stats.is_off),
    }


def expert_counts(stats: ExpertStats | None) -> Mapping[str, float]:
    """Returns the counters by metric; nothing where experts stay."""
    if stats is None:
        return {}
    return {
        "expert_moves": stats.num_moved,
        "expert_move_seconds": stats.seconds,
        "expert_rearrangements": stats.num_rearranged,
    }
