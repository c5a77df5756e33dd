"""Prometheus alert rules: the declared targets, and what is wrong in any deployment."""

from typing import Any, Final

from appliance.deploy.render.documents import dump
from appliance.deploy.render.workload import ServerWorkload

_METRICS: Final = {  # latency of the slo section -> histogram
    "ttft": "appliance_time_to_first_token_seconds",
    "tpot": "appliance_inter_token_seconds",
    "e2el": "appliance_request_seconds",
}
_WINDOW: Final = "5m"
_PATIENCE: Final = "5m"


def render(workload: ServerWorkload) -> dict[str, str]:
    rules = [*_health_rules(workload), *_slo_rules(workload)]
    group = {"name": f"appliance-{workload.name}", "rules": rules}
    return {f"{workload.name}-alerts.yaml": dump([{"groups": [group]}])}


def _health_rules(workload: ServerWorkload) -> list[dict[str, Any]]:
    model = f'model_name="{workload.model_name}"'
    restarts, refused = (
        f"appliance_engine_restarts_total{{{model}}}",
        f'appliance_http_requests_total{{{model},status="429"}}',
    )
    failed = f'appliance_http_requests_total{{{model},status=~"5.."}}'
    return [
        _rule(
            "ApplianceNotReady",
            f"min(max without (engine) (appliance_engine_ready{{{model}}})) == 0",
            "1m",
            "critical",
            "takes no requests",
        ),
        _rule("ApplianceGone", f"absent(appliance_engine_ready{{{model}}})", "2m", "critical", "is not scraped"),
        _rule("ApplianceEngineRestarts", f"increase({restarts}[15m]) > 0", "0m", "warning", "started its engine again"),
        _rule("ApplianceErrors", f"sum(rate({failed}[{_WINDOW}])) > 0", _PATIENCE, "warning", "answers 5xx"),
        _rule(
            "ApplianceSheds", f"sum(rate({refused}[{_WINDOW}])) > 0", _PATIENCE, "warning", "refuses requests with 429"
        ),
        _rule(
            "ApplianceCacheFull",
            f"max(appliance_kv_cache_usage_ratio{{{model}}}) > 0.95 and sum(rate(appliance_preemptions_total{{{model}}}"
            f"[{_WINDOW}])) > 0",
            _PATIENCE,
            "warning",
            "puts sequences back for want of KV cache",
        ),
    ]


def _slo_rules(workload: ServerWorkload) -> list[dict[str, Any]]:
    """One rule a target. Targets of `itl` are not here: the server keeps the mean gap of a request, not each gap."""
    rules = []
    for name, seconds in sorted(workload.slo.items()):
        latency, _, percent = name.partition("_p")
        if latency not in _METRICS:
            continue
        bucket = f'{_METRICS[latency]}_bucket{{model_name="{workload.model_name}"}}'
        quantile = f"histogram_quantile({int(percent) / 100:g}, sum by (le) (rate({bucket}[{_WINDOW}])))"
        title = f"ApplianceSlo{latency.capitalize()}P{percent}"
        rules.append(
            _rule(title, f"{quantile} > {seconds:g}", _PATIENCE, "warning", f"misses slo.{name} of {seconds:g} s")
        )
    return rules


def _rule(title: str, expression: str, patience: str, severity: str, what: str) -> dict[str, Any]:
    return {
        "alert": title,
        "expr": expression,
        "for": patience,
        "labels": {"severity": severity},
        "annotations": {"summary": f"{{{{ $labels.model_name }}}} {what}"},
    }
