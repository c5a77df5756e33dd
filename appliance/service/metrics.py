"""Figures for Prometheus. METRICS is the one list of them; schemas/metrics.v1.json is made from it.

Every name exists twice: under `appliance_`, and where vLLM has the same figure, under its `vllm:` name, so that
existing dashboards work.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from appliance.catalog.degradations import DEGRADATIONS, DegradationKind
from appliance.engine.messages import STEP_TOKEN_BOUNDS
from appliance.plan.types import AdaptersPlan, EnginePlan
from appliance.service.adapter_metrics import ADAPTER_METRICS, OF_ADAPTERS
from appliance.service.counted import CountedHistogram
from appliance.service.engine_metrics import EngineMetrics, Planned
from appliance.service.expert_metrics import EXPERT_METRICS
from appliance.service.figure import Figure, names_of
from appliance.service.metric import Metric
from appliance.service.pause_metrics import PAUSE_METRICS
from appliance.service.sleep_metrics import SLEEP_METRICS
from appliance.service.speculation_metrics import SPECULATION_METRICS
from appliance.service.swap_metrics import SWAP_METRICS
from appliance.service.weight_metrics import WEIGHT_METRICS

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_WHOLE = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
_N = (1.0, 2.0, 5.0, 10.0, 20.0)
_PHASE = (0.001, 0.005, 0.01, 0.05, *_WHOLE)
_STEP = tuple(float(bound) for bound in STEP_TOKEN_BOUNDS)
# vLLM's words; a block is one of the KV cache, wherever that lies
CACHE_LABELS = ("block_size", "cache_dtype", "enable_prefix_caching", "num_gpu_blocks", "prefix_caching_hash_algo")


def _histogram(name: str, text: str, vllm_name: str, buckets: tuple[float, ...], *other_names: str) -> Metric:
    return Metric(name, "histogram", text, vllm_name, (), buckets, other_names)


_OF_ENGINES: tuple[Metric, ...] = (
    Metric("requests_running", "gauge", "Sequences that take part in steps", "num_requests_running"),
    Metric("requests_waiting", "gauge", "Sequences that wait for a place", "num_requests_waiting"),
    Metric(
        "kv_cache_usage_ratio",
        "gauge",
        "Used share of the KV cache, 1 is all",
        "kv_cache_usage_perc",
        other_names=("gpu_cache_usage_perc",),
    ),
    Metric(
        "kv_cache_group_usage_ratio",
        "gauge",
        "Share of the KV cache that layers of one reach use; the groups add up to kv_cache_usage_ratio",
        labels=("group", "window"),
    ),
    Metric("kv_cache_touched_bytes", "gauge", "Bytes of the KV cache that are resident: others cost no memory yet"),
    Metric("state_snapshots_kept", "gauge", "Recurrent states kept at block boundaries, for prompts that begin alike"),
    Metric("graphs_captured", "gauge", "Sizes of steps that run as graphs by now"),
    Metric("graphs_planned", "gauge", "Sizes of steps that are to run as graphs"),
    Metric("graph_capture_seconds", "gauge", "What capturing graphs took since the engine's start"),
    Metric("preemptions", "counter", "Sequences that were put back to make room", "num_preemptions"),
    Metric("policy_faults", "counter", "Steps for which scheduler.scheduler_cls gave no order, so that policy decided"),
    Metric("prompt_tokens", "counter", "Prompt tokens processed", "prompt_tokens"),
    Metric("generation_tokens", "counter", "Tokens generated", "generation_tokens"),
    Metric("prefix_cache_queries", "counter", "Prompt tokens looked up in the prefix cache", "prefix_cache_queries"),
    Metric("prefix_cache_hits", "counter", "Prompt tokens found in the prefix cache", "prefix_cache_hits"),
    Metric("engine_steps", "counter", "Steps that the engine ran"),
    *SPECULATION_METRICS,
    *SWAP_METRICS,
    *SLEEP_METRICS,
    *PAUSE_METRICS,
    *WEIGHT_METRICS,
    *EXPERT_METRICS,
    *ADAPTER_METRICS,
    Metric("engine_ready", "gauge", "1 when the engine takes requests"),
    Metric("engine_restarts", "counter", "Times the engine was started again after a failure"),
    _histogram("time_to_first_token_seconds", "Arrival to first token", "time_to_first_token_seconds", _TTFT),
    _histogram(
        "inter_token_seconds",
        "Mean time between a request's tokens",
        "time_per_output_token_seconds",
        _PER_TOKEN,
        "request_time_per_output_token_seconds",
    ),
    _histogram("request_seconds", "Arrival to last token", "e2e_request_latency_seconds", _WHOLE),
    _histogram("request_queue_seconds", "In the engine, before the first step", "request_queue_time_seconds", _PHASE),
    _histogram("request_prefill_seconds", "First step to first token", "request_prefill_time_seconds", _PHASE),
    _histogram("request_decode_seconds", "First token to the end", "request_decode_time_seconds", _PHASE),
    _histogram("request_inference_seconds", "First step to the end", "request_inference_time_seconds", _PHASE),
    _histogram("step_tokens", "Tokens of prompts and answers in a step", "iteration_tokens_total", _STEP),
    _histogram("request_prompt_tokens", "Prompt tokens of a request", "request_prompt_tokens", _TOKENS),
    _histogram("request_generation_tokens", "Tokens of an answer", "request_generation_tokens", _TOKENS),
    _histogram(
        "request_longest_answer_tokens",
        "Tokens of the longest of a request's n answers",
        "request_max_num_generation_tokens",
        _TOKENS,
    ),
    _histogram("request_params_n", "The parameter n", "request_params_n", _N),
    _histogram("request_params_max_tokens", "The parameter max_tokens", "request_params_max_tokens", _TOKENS),
    Metric("requests_finished", "counter", "Requests by how they ended", "request_success", ("finished_reason",)),
)
_OF_SERVICE: tuple[Metric, ...] = (
    Metric("adapters_served", "gauge", "Adapters that are served"),
    Metric("cache_config_info", "gauge", "1; the planned cache as labels", "cache_config_info", CACHE_LABELS),
    Metric("deep_checks", "counter", "Deep checks by what they found: ok, busy, stuck", None, ("result",)),
    Metric("requests_shed", "counter", "Requests refused because the queue is too long for slo.ttft"),
    Metric("degradations", "counter", "Answers in a lesser form than was asked for, by its kind", None, ("kind",)),
    Metric("slo_target_seconds", "gauge", "Declared bound of a target", None, ("target",)),
    Metric("slo_requests", "counter", "Answered requests by target, and whether they met it", None, ("target", "met")),
    Metric("key_requests", "counter", "Requests by API key", None, ("key",)),
    Metric("key_tokens", "counter", "Tokens by API key, of prompts and of answers", None, ("key", "kind")),
    Metric("key_refusals", "counter", "Requests refused by the rules of their API key", None, ("key", "reason")),
    Metric("http_requests", "counter", "HTTP answers by route and status", None, ("route", "status")),
)
METRICS = (*(replace(each, by_engine=True) for each in _OF_ENGINES), *_OF_SERVICE)
_UNLABELLED = tuple(each.name for each in _OF_ENGINES if not each.labels and each.name != "step_tokens")


def schema_text() -> str:
    """Returns the text of schemas/metrics.v1.json."""
    return json.dumps(schema(), indent=2) + "\n"


def schema() -> dict[str, Any]:
    """Returns the content of schemas/metrics.v1.json."""
    return {
        "title": "Metrics of the appliance, version 1",
        "path": "/metrics",
        "common_labels": ["model_name"],
        "metrics": [
            {
                "name": f"appliance_{metric.name}" + ("_total" if metric.kind == "counter" else ""),
                "alias": metric.vllm_name
                and f"vllm:{metric.vllm_name}" + ("_total" if metric.kind == "counter" else ""),
                "kind": metric.kind,
                "help": metric.help,
                "labels": list(metric.label_names),
                "buckets": list(metric.buckets),
            }
            | ({"other_aliases": [f"vllm:{name}" for name in metric.other_names]} if metric.other_names else {})
            for metric in METRICS
        ],
    }


class ServiceMetrics:
    """All figures of one server. Label values come from the plan and from fixed lists, never from requests."""

    def __init__(self, model_name: str, *, has_engine: bool = True) -> None:
        """has_engine: this process, and no other, exports the engines' own figures."""
        self._has_engine = has_engine
        self._registry = CollectorRegistry()
        own = [metric for metric in METRICS if metric.name != "step_tokens"]
        self._figures = {metric.name: Figure(metric, model_name, self._registry) for metric in own}
        self._steps = _step_histogram(model_name)
        self._registry.register(self._steps)
        for each in DEGRADATIONS:
            self._figures["degradations"].add(0, each.kind)
        self._targets: dict[str, float] = {}
        self._planned = Planned()
        self._engines: dict[str, EngineMetrics] = {}

    def of_engine(self, number: int = 0) -> EngineMetrics:
        """Returns the figures of one replica, which are exported from now on."""
        engine = str(number)
        if engine not in self._engines:
            self._engines[engine] = EngineMetrics(
                engine,
                self._figures,
                self._steps,
                self._planned,
                exports_engine=self._has_engine,
                shed=self.shed,
                judge=self.judge,
            )
            self._steps.show(engine)
            for name in _UNLABELLED:
                self._figures[name].show(engine)
        return self._engines[engine]

    def describe(self, plan: EnginePlan) -> None:
        """Sets the figures that come from the plan. A later plan replaces an earlier one."""
        cache, dtype, figures = plan.cache, plan.precision.kv_dtype, self._figures
        for name in ("cache_config_info", "slo_target_seconds", "kv_cache_group_usage_ratio"):
            figures[name].clear()
        values = (cache.block_size, dtype, cache.prefix_caching, cache.num_blocks, cache.hash_algorithm)
        figures["cache_config_info"].set(1, *map(str, values))
        groups = (group for device in plan.memory for group in device.kv_groups)
        self._planned.groups = {each.group: "full" if each.window is None else str(each.window) for each in groups}
        self._planned.block_bytes = sum(device.kv_bytes_per_block for device in plan.memory)
        self._describe_adapters(plan.adapters)
        self._targets = dict(plan.slo)
        for target, bound in self._targets.items():
            figures["slo_target_seconds"].set(bound, target)
            for met in ("yes", "no"):
                figures["slo_requests"].add(0, target, met)

    def _describe_adapters(self, plan: AdaptersPlan | None) -> None:
        served = () if plan is None else plan.served
        self._planned.max_loras = 0 if plan is None else plan.max_loras
        self._planned.adapters = frozenset(each.name for each in served)
        self._figures["adapters_served"].set(len(self._planned.adapters))
        for name in OF_ADAPTERS:
            self._figures[name].keep_only(1, self._planned.adapters)

    @property
    def collector(self) -> CollectorRegistry:
        """All figures as they are now."""
        for engine in self._engines.values():
            engine.export()
        return self._registry

    def judge(self, latencies: Mapping[str, float | None]) -> None:
        """Counts, for each target (such as `ttft_p95`) of a measured figure, whether an answered request met it.

        A target takes each request by its bound, as goodput does; the share that met it is compared with the
        percentile by the reader. `itl` is judged by the mean gap of a request.
        """
        for target, bound in self._targets.items():
            value = latencies[target.partition("_")[0]]
            if value is not None:
                self._figures["slo_requests"].add(1, target, "no" if value > bound else "yes")

    def deep_checked(self, result: str) -> None:
        self._figures["deep_checks"].add(1, result)

    def shed(self) -> None:
        self._figures["requests_shed"].add(1)

    def degraded(self, kind: DegradationKind) -> None:
        self._figures["degradations"].add(1, kind)

    def answered(self, route: str, status: int) -> None:
        self._figures["http_requests"].add(1, route, str(status))

    def key_used(self, key: str, kind: str, amount: int) -> None:
        """`kind`: requests, prompt_tokens or generation_tokens. `key` is a name of the plan or of its file of keys."""
        if kind == "requests":
            self._figures["key_requests"].add(amount, key)
        else:
            self._figures["key_tokens"].add(amount, key, kind.removesuffix("_tokens"))

    def key_refused(self, key: str, reason: str) -> None:
        self._figures["key_refusals"].add(1, key, reason)

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.collector)


def _step_histogram(model_name: str) -> CountedHistogram:
    (metric,) = (metric for metric in METRICS if metric.name == "step_tokens")
    return CountedHistogram(names_of(metric), metric.help, model_name, metric.buckets)
