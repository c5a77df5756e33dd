"""What is worth watching, as PromQL: shared by the dashboard and its tests."""

from dataclasses import dataclass
from typing import Final

MODEL: Final = 'model_name="$model"'  # a dashboard's variable
WINDOW: Final = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Query:
    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """`slo_prefix`: the declared targets of this latency are drawn as lines."""

    title: str
    unit: str  # a unit id of Grafana's
    queries: tuple[Query, ...]
    slo_prefix: str | None = None


def _rate(metric: str, by: str = "") -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({metric}{{{MODEL}}}[{WINDOW}]))"


def _sum(metric: str) -> str:
    return f"sum({metric}{{{MODEL}}})"


def _quantiles(metric: str) -> tuple[Query, ...]:
    return tuple(
        Query(f"histogram_quantile({share}, {_rate(metric + '_bucket', 'le')})", f"p{round(100 * share)}")
        for share in (0.5, 0.95, 0.99)
    )


def _met() -> str:
    """The share of answers that met each declared target."""
    met = f'sum by (target) (rate(appliance_slo_requests_total{{{MODEL},met="yes"}}[{WINDOW}]))'
    return f"{met} / {_rate('appliance_slo_requests_total', 'target')}"


def _per_hit() -> str:
    return f"{_rate('appliance_prefix_cache_hits_total')} / {_rate('appliance_prefix_cache_queries_total')}"


PANELS: Final[tuple[Panel, ...]] = (
    Panel(
        "Tokens a second",
        "short",
        (
            Query(_rate("appliance_prompt_tokens_total"), "prompts"),
            Query(_rate("appliance_generation_tokens_total"), "answers"),
        ),
    ),
    Panel(
        "Requests",
        "short",
        (Query(_sum("appliance_requests_running"), "running"), Query(_sum("appliance_requests_waiting"), "waiting")),
    ),
    Panel("Time to first token", "s", _quantiles("appliance_time_to_first_token_seconds"), "ttft"),
    Panel("Time in the queue", "s", _quantiles("appliance_request_queue_seconds")),
    Panel("Time between tokens", "s", _quantiles("appliance_inter_token_seconds"), "tpot"),
    Panel("Whole requests", "s", _quantiles("appliance_request_seconds"), "e2el"),
    Panel(
        "Answers by end",
        "reqps",
        (Query(_rate("appliance_requests_finished_total", "finished_reason"), "{{finished_reason}}"),),
    ),
    Panel("Targets met", "percentunit", (Query(_met(), "{{target}}"),)),
    Panel(
        "KV cache",
        "percentunit",
        (
            Query(f"max(appliance_kv_cache_usage_ratio{{{MODEL}}})", "used"),
            Query(_per_hit(), "prompt tokens found"),
        ),
    ),
    Panel(
        "Engine",
        "short",
        (
            Query(_rate("appliance_engine_steps_total"), "steps a second"),
            Query(_rate("appliance_preemptions_total"), "preemptions a second"),
            Query(f"min(appliance_engine_ready{{{MODEL}}})", "ready"),
            Query(_rate("appliance_requests_shed_total"), "shed a second"),
        ),
    ),
    Panel("HTTP answers", "reqps", (Query(_rate("appliance_http_requests_total", "status"), "{{status}}"),)),
    Panel(
        "Tokens by key",
        "short",
        (
            Query(_rate("appliance_key_tokens_total", "key, kind"), "{{key}}, {{kind}}"),
            Query(_rate("appliance_key_refusals_total", "key, reason"), "{{key}} refused, {{reason}}"),
        ),
    ),
)
