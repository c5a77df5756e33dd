"""What `status` reads of preempted sequences from a server's metrics."""

import msgspec

from appliance.deploy.preemption import read_swap, swap_text
from appliance.engine.swap_messages import SwapStats
from appliance.service.metrics import ServiceMetrics

from .test_speculation import STATS


def rendered(swap: SwapStats | None) -> str:
    metrics = ServiceMetrics("model")
    metrics.of_engine().note(msgspec.structs.replace(STATS, swap=swap))
    return metrics.render().decode()


def test_outcomes_and_rates_are_read_from_what_the_server_exports() -> None:
    told = SwapStats(
        num_places=10, place_bytes=1000, num_places_used=4, num_swapped=2, num_stored=5, num_loaded=3, num_computed=1,
        num_without_room=0, num_unloaded=1, places_stored=50_000, places_loaded=30_000, store_s=0.05, load_s=0.01,
        store_s_per_place=1e-6, load_s_per_place=None, token_s=0.001,
    )  # fmt: skip
    text = rendered(told)
    assert 'vllm:num_requests_swapped{engine="0",model_name="model"} 2.0' in text
    assert 'vllm:cpu_cache_usage_perc{engine="0",model_name="model"} 0.4' in text
    assert 'appliance_swap_cost_seconds{engine="0",model_name="model",what="compute"} 0.001' in text
    assert 'what="load"' not in text
    assert swap_text(read_swap(text)) == "stored 5, loaded 3, computed 1, mismatched 1, out 1.0 GB/s, in 3.0 GB/s"


def test_a_server_without_swap_space_says_nothing() -> None:
    text = rendered(None)
    assert 'vllm:num_requests_swapped{engine="0",model_name="model"} 0.0' in text
    assert read_swap(text) is None
    assert swap_text(None) is None
