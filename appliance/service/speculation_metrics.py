"""Figures of speculation: what became of drafts, by position and by method, and why steps had none."""

from appliance.engine.speculation_messages import MethodStats, SpeculationStats
from appliance.service.metric import Metric

SPECULATION_METRICS = (
    Metric("drafts", "counter", "Drafts that steps verified", "spec_decode_num_drafts"),
    Metric("draft_tokens", "counter", "Tokens of verified drafts", "spec_decode_num_draft_tokens"),
    Metric("draft_tokens_accepted", "counter", "Of these, accepted ones", "spec_decode_num_accepted_tokens"),
    Metric(
        "draft_tokens_accepted_at",
        "counter",
        "Accepted tokens by their position in the draft",
        "spec_decode_num_accepted_tokens_per_pos",
        ("position",),
    ),
    Metric("method_drafts", "counter", "Drafts by method", None, ("method",)),
    Metric("method_draft_tokens", "counter", "Tokens of drafts by method", None, ("method",)),
    Metric("method_draft_tokens_accepted", "counter", "Accepted tokens by method", None, ("method",)),
    Metric("drafting_seconds", "counter", "Seconds in which a draft model ran between steps"),
    Metric("drafting_passes", "counter", "How often a draft model ran"),
    Metric("speculation_steps", "counter", "Steps by what was done: verified, or why nothing", None, ("decision",)),
)


def speculation_counts(stats: SpeculationStats | None) -> dict[tuple[str, ...], float]:
    """Returns the counters by metric and label values; nothing where the plan has no speculation."""
    if stats is None:
        return {}
    methods = list(stats.methods.values())
    counts: dict[tuple[str, ...], float] = {
        ("drafts",): sum(each.drafts for each in methods),
        ("draft_tokens",): sum(each.draft_tokens for each in methods),
        ("draft_tokens_accepted",): sum(each.accepted_tokens for each in methods),
        ("drafting_seconds",): stats.drafting_s,
        ("drafting_passes",): stats.num_passes,
    }
    for position in range(max((len(each.accepted_at) for each in methods), default=0)):
        counts["draft_tokens_accepted_at", str(position)] = _at(methods, position)
    for name, each in stats.methods.items():
        counts["method_drafts", name] = each.drafts
        counts["method_draft_tokens", name] = each.draft_tokens
        counts["method_draft_tokens_accepted", name] = each.accepted_tokens
    for decision, count in stats.steps.items():
        counts["speculation_steps", decision] = count
    return counts


def _at(methods: list[MethodStats], position: int) -> int:
    return sum(each.accepted_at[position] for each in methods if position < len(each.accepted_at))
