"""The figures of one engine, which the label `engine` tells apart from those of other replicas."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from appliance.engine.adapter_messages import AdapterReport
from appliance.engine.messages import EngineStats
from appliance.engine.time_messages import RequestTimes
from appliance.service.adapter_metrics import info_labels, request_labels
from appliance.service.counted import CountedHistogram
from appliance.service.expert_metrics import EXPERT_GAUGES, expert_counts, expert_gauges
from appliance.service.figure import Figure
from appliance.service.pause_metrics import pause_gauges
from appliance.service.sleep_metrics import sleep_gauges
from appliance.service.speculation_metrics import speculation_counts
from appliance.service.swap_metrics import SWAP_GAUGES, swap_costs, swap_counts, swap_gauges
from appliance.service.weight_metrics import weight_gauges

ENGINE_GAUGES = (
    "requests_running", "requests_waiting", "kv_cache_usage_ratio", "kv_cache_touched_bytes",
    "state_snapshots_kept", "graphs_captured", "graphs_planned", "graph_capture_seconds", "engine_ready",
    "weights_version",
    *EXPERT_GAUGES, *SWAP_GAUGES,
)  # fmt: skip


@dataclass(slots=True)
class Planned:
    """What the newest plan says that figures of engines need. groups: the window of each group of caches."""

    block_bytes: int = 0
    groups: dict[int, str] = field(default_factory=dict)
    adapters: frozenset[str] = frozenset()  # names that are served
    max_loras: int = 0


class EngineMetrics:
    """Counts what one engine and its client tell. `figures`, `steps` and `planned` are those of all engines."""

    def __init__(
        self,
        engine: str,
        figures: Mapping[str, Figure],
        steps: CountedHistogram,
        planned: Planned,
        *,
        exports_engine: bool,
        shed: Callable[[], None],
        judge: Callable[[Mapping[str, float | None]], None],
    ) -> None:
        """engine: the value of the label. exports_engine: this process, and no other, exports the engine's own
        figures. shed, judge: of the service as a whole."""
        self.engine = engine
        self.shed = shed
        self.judge = judge
        self._figures = figures
        self._steps = steps
        self._planned = planned
        self._exports_engine = exports_engine
        self._latest: EngineStats | None = None
        self._last: dict[str, float] = {}

    def adapters_found(self, reports: Mapping[str, AdapterReport]) -> None:
        """Takes what the engine found of the adapters that it serves now."""
        if self._exports_engine:
            self._figures["adapter_info"].clear(self.engine)
            for labels in info_labels(reports):
                self._set("adapter_info", 1, *labels)

    def adapter_used(self, adapter: str, num_prompt_tokens: int, num_tokens: int) -> None:
        """Counts a request with an adapter that has ended."""
        if adapter in self._planned.adapters:
            self._add("adapter_requests", 1, adapter)
            self._add("adapter_tokens", num_prompt_tokens, adapter, "prompt")
            self._add("adapter_tokens", num_tokens, adapter, "generation")

    def note(self, stats: EngineStats) -> None:
        """Keeps the latest statistics, which are exported when metrics are scraped."""
        if self._exports_engine:
            self._latest = stats

    def export(self) -> None:
        """Brings the figures up to the latest statistics."""
        stats, self._latest = self._latest, None
        if stats is None:
            return
        self._set("requests_running", stats.num_running)
        self._set("requests_waiting", stats.num_waiting)
        self._set("kv_cache_usage_ratio", stats.num_blocks_used / max(stats.num_blocks_total, 1))
        for group, window in self._planned.groups.items():
            used = stats.blocks_used_by_group[group]
            self._set("kv_cache_group_usage_ratio", used / max(stats.num_blocks_total, 1), str(group), window)
        self._set("kv_cache_touched_bytes", stats.num_blocks_touched * self._planned.block_bytes)
        self._set("state_snapshots_kept", stats.num_snapshots_kept)
        if stats.graphs is not None:
            self._set("graphs_captured", stats.graphs.num_captured)
            self._set("graphs_planned", stats.graphs.num_planned)
            self._set("graph_capture_seconds", stats.graphs.seconds)
        for name, value in expert_gauges(stats.experts).items():
            self._set(name, value)
        for name, value in (_counters(stats) | dict(expert_counts(stats.experts))).items():
            self._count(name, value)
        if stats.adapters is not None:
            self._figures["lora_requests_info"].clear(self.engine)
            self._set("lora_requests_info", time.time(), *request_labels(stats.adapters, self._planned.max_loras))
            self._count("adapter_slot_writes", stats.adapters.num_writes)
        self._steps.note(self.engine, stats.step_sizes, stats.step_tokens)
        for name, value in swap_gauges(stats.swap).items():
            self._set(name, value)
        self._figures["weights_info"].clear(self.engine)
        states = sleep_gauges(stats.sleep) | weight_gauges(stats.weights) | pause_gauges(stats.pause)
        for (name, *labels), value in states.items():
            self._set(name, value, *labels)
        for what, value in swap_costs(stats.swap).items():
            self._set("swap_cost_seconds", value, what)
        for (name, *labels), value in (speculation_counts(stats.speculation) | swap_counts(stats.swap)).items():
            self._count(name, value, *labels)

    def engine_gone(self) -> None:
        """A new engine counts from zero."""
        self.export()
        self._last.clear()
        self._steps.restart(self.engine)
        for name in ENGINE_GAUGES:
            self._set(name, 0)
        self._figures["weights_info"].clear(self.engine)
        for group, window in self._planned.groups.items():
            self._set("kv_cache_group_usage_ratio", 0, str(group), window)

    def set_ready(self, is_ready: bool) -> None:
        self._set("engine_ready", float(is_ready))

    def restarted(self) -> None:
        self._add("engine_restarts", 1)

    def observe(self, name: str, value: float) -> None:
        self._figures[name].observe(value, self.engine)

    def phases(self, times: RequestTimes) -> None:
        """A request ended in the engine. Phases that it did not reach are not counted."""
        self.observe("request_queue_seconds", times.queue_s)
        if times.prefill_s is not None and times.decode_s is not None:
            self.observe("request_prefill_seconds", times.prefill_s)
            self.observe("request_decode_seconds", times.decode_s)
            self.observe("request_inference_seconds", times.prefill_s + times.decode_s)

    def finished(self, reason: str) -> None:
        self._add("requests_finished", 1, reason)

    def _set(self, name: str, value: float, *labels: str) -> None:
        self._figures[name].set(value, self.engine, *labels)

    def _add(self, name: str, amount: float, *labels: str) -> None:
        self._figures[name].add(amount, self.engine, *labels)

    def _count(self, name: str, value: float, *labels: str) -> None:
        """Adds what the engine has counted since it was last asked."""
        key = "/".join((name, *labels))
        last = self._last.get(key, 0.0)
        if value > last:
            self._add(name, value - last, *labels)
        self._last[key] = value


def _counters(stats: EngineStats) -> dict[str, float]:
    return {
        "preemptions": stats.num_preemptions,
        "policy_faults": stats.num_policy_faults,
        "prompt_tokens": stats.prompt_tokens,
        "generation_tokens": stats.generation_tokens,
        "prefix_cache_queries": stats.prefix_queries,
        "prefix_cache_hits": stats.prefix_hits,
        "engine_steps": stats.num_steps,
    }
