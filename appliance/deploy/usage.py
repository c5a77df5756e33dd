"""What a running server has done since it started, for its operator: read from its own metrics, and sent nowhere."""

from collections import defaultdict
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

# Where a figure is counted: of all requests, by API key, or by adapter; under the value of a label, where it has kinds.
_FIGURES: Final = {
    "appliance_requests_finished_total": ("requests", "", "finished_reason"),
    "appliance_prompt_tokens_total": ("prompt_tokens", "", ""),
    "appliance_prefix_cache_hits_total": ("cached_prompt_tokens", "", ""),
    "appliance_generation_tokens_total": ("generation_tokens", "", ""),
    "appliance_key_requests_total": ("requests", "key", ""),
    "appliance_key_tokens_total": ("tokens", "key", "kind"),
    "appliance_key_refusals_total": ("refusals", "key", "reason"),
    "appliance_adapter_requests_total": ("requests", "adapter", ""),
    "appliance_adapter_tokens_total": ("tokens", "adapter", "kind"),
}
_NO_METRICS: Final = (
    "the server shows no metrics: observability.metrics.enabled, or APPLIANCE_API_KEY where it has keys"
)


def read_usage(metrics: str) -> dict[str, Any]:
    """Reads the Prometheus text of a server: whole numbers of requests and tokens since it started, those of replicas
    added up. `keys` and `adapters` have a name for each that was used."""
    total: dict[str, Any] = {}
    owners: dict[str, dict[str, dict[str, Any]]] = {"key": defaultdict(dict), "adapter": defaultdict(dict)}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if (place := _FIGURES.get(sample.name)) is None:
                continue
            figure, owner, kind = place
            into = owners[owner][sample.labels[owner]] if owner else total
            if kind:
                into, figure = into.setdefault(figure, {}), sample.labels[kind]
            into[figure] = into.get(figure, 0) + int(sample.value)
    return {**total, "keys": dict(owners["key"]), "adapters": dict(owners["adapter"])}


def usage_text(found: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Returns rows of a name and what was counted."""
    if found is None:
        return [("usage", _NO_METRICS)]
    rows = [("requests", _kinds(found.get("requests", {})) or "none")]
    prompt, cached, made = (found.get(f"{name}_tokens", 0) for name in ("prompt", "cached_prompt", "generation"))
    rows.append(("tokens", f"{prompt:,} of prompts ({cached:,} cached), {made:,} of answers"))
    for owner in ("key", "adapter"):
        for name, each in sorted(found[f"{owner}s"].items()):
            rows.append((f"{owner} {name}", _of_owner(each)))
    return rows


def _of_owner(found: dict[str, Any]) -> str:
    parts = [f"{found.get('requests', 0):,} requests"]
    parts += [f"{what} {_kinds(found[what])}" for what in ("tokens", "refusals") if found.get(what)]
    return "; ".join(parts)


def _kinds(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
