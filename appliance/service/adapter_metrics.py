"""Figures of adapters. Their labels are the names that are served: those of adapters that are no more go with them."""

from collections.abc import Mapping

from appliance.engine.adapter_messages import AdapterReport, AdapterStats
from appliance.service.metric import Metric

OF_ADAPTERS = ("adapter_requests", "adapter_tokens")  # counters by name
ADAPTER_METRICS = (
    Metric(
        "lora_requests_info",
        "gauge",
        "Seconds since the epoch when these adapters had running and waiting sequences; names with commas",
        "lora_requests_info",
        ("max_lora", "waiting_lora_adapters", "running_lora_adapters"),
    ),
    Metric(
        "adapter_info",
        "gauge",
        "1; of each adapter its digest, and to how many of its modules it adds something",
        None,
        ("adapter", "sha256", "effective_modules", "modules"),
    ),
    Metric("adapter_slot_writes", "counter", "Times an adapter was written into a slot"),
    Metric("adapter_requests", "counter", "Requests by adapter", None, ("adapter",)),
    Metric("adapter_tokens", "counter", "Tokens by adapter, of prompts and of answers", None, ("adapter", "kind")),
)


def info_labels(reports: Mapping[str, AdapterReport]) -> list[tuple[str, ...]]:
    """Returns the label values of adapter_info, for each adapter."""
    return [
        (name, each.adapter.sha256, str(each.effective_modules), str(each.num_modules))
        for name, each in reports.items()
    ]


def request_labels(stats: AdapterStats, max_loras: int) -> tuple[str, ...]:
    """Returns the label values of lora_requests_info."""
    return str(max_loras), ",".join(stats.waiting), ",".join(stats.running)
