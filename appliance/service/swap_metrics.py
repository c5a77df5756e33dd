"""Figures of swapping: what became of preempted sequences, and what moving them took."""

from collections.abc import Mapping

from appliance.engine.swap_messages import SwapStats
from appliance.service.metric import Metric

SWAP_METRICS = (
    Metric("requests_swapped", "gauge", "Preempted sequences that lie in host memory", "num_requests_swapped"),
    Metric("swap_usage_ratio", "gauge", "Used share of the swap space, 1 is all", "cpu_cache_usage_perc"),
    Metric(
        "preempted_sequences",
        "counter",
        "What became of preempted sequences where there is swap space: stored, loaded, computed (again, as that takes "
        "less time), without_room, or mismatched (computed again, as a checksum differed)",
        None,
        ("outcome",),
    ),
    Metric("swapped_bytes", "counter", "Bytes that were copied to the swap space (out) or back (in)", None, ("way",)),
    Metric("swap_seconds", "counter", "Seconds that copying to the swap space and back took", None, ("way",)),
    Metric(
        "swap_cost_seconds",
        "gauge",
        "Measured seconds that decide whether sequences are copied: to store or to load a block, to compute a token",
        None,
        ("what",),
    ),
)
SWAP_GAUGES = ("requests_swapped", "swap_usage_ratio")


def swap_gauges(stats: SwapStats | None) -> Mapping[str, float]:
    """Returns the gauges by metric; zeros where there is no swap space."""
    if stats is None:
        return dict.fromkeys(SWAP_GAUGES, 0.0)
    return {
        "requests_swapped": stats.num_swapped,
        "swap_usage_ratio": stats.num_places_used / stats.num_places,
    }


def swap_costs(stats: SwapStats | None) -> dict[str, float]:
    """Returns the measured seconds that decide, by what they are of; without those that are not known yet."""
    if stats is None:
        return {}
    costs = {"store": stats.store_s_per_place, "load": stats.load_s_per_place, "compute": stats.token_s}
    return {what: seconds for what, seconds in costs.items() if seconds is not None}


def swap_counts(stats: SwapStats | None) -> dict[tuple[str, ...], float]:
    """Returns the counters by metric and label values; nothing where there is no swap space."""
    if stats is None:
        return {}
    return {
        ("preempted_sequences", "stored"): stats.num_stored,
        ("preempted_sequences", "loaded"): stats.num_loaded,
        ("preempted_sequences", "computed"): stats.num_computed,
        ("preempted_sequences", "without_room"): stats.num_without_room,
        ("preempted_sequences", "mismatched"): stats.num_unloaded,
        ("swapped_bytes", "out"): stats.places_stored * stats.place_bytes,
        ("swapped_bytes", "in"): stats.places_loaded * stats.place_bytes,
        ("swap_seconds", "out"): stats.store_s,
        ("swap_seconds", "in"): stats.load_s,
    }
