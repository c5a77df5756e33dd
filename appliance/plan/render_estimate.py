"""An estimate and advice as text for people, and as JSON."""

from collections.abc import Sequence
from typing import Any

import msgspec

from appliance.hardware.facts import MeasuredFacts
from appliance.plan.advice import Advice, Figures, missed_bounds
from appliance.plan.estimate import Estimate
from appliance.plan.render import LABEL, table
from appliance.plan.types import EnginePlan

_WORDS = {
    "prefill": "prompts",
    "decode": "one stream",
    "throughput": "all streams",
    "itl": "time between tokens",
    "cache": "tokens the cache holds",
}


def estimate_lines(plan: EnginePlan, alone: Estimate, full: Estimate, measured: MeasuredFacts) -> list[str]:
    prompt = alone.workload.prompt
    lines = [
        f"one prompt of {prompt:,} tokens: the first token after {alone.ttft_s:.2f} s ({alone.prefill_tokens_per_s:.0f}"
        f" tokens/s), then {alone.itl_s * 1e3:.1f} ms a token ({alone.decode_tokens_per_s:.1f} tokens/s)",
        f"{full.workload.streams} streams at once: {full.itl_s * 1e3:.1f} ms a token, {full.output_tokens_per_s:.0f}"
        f" tokens/s in all, bound by {full.decode_bound}",
        f"at best, with the {measured.read_bandwidth / 1e9:.1f} GB/s measured here; bench says what is reached",
    ]
    shown = [f"{'estimate' if not at else '':<{LABEL}}{line}" for at, line in enumerate(lines)]
    return [*shown, *(f"warning: {text}" for text in missed_bounds(plan, alone, full))]


def advice_lines(found: Sequence[Advice]) -> list[str]:
    if not found:
        return [f"{'advice':<{LABEL}}no change of one field would gain anything"]
    rows = [("advice", "better", "worse", "costs")]
    for each in found:
        value = str(each.change.value).lower() if isinstance(each.change.value, bool) else each.change.value
        rows.append((f"{each.change.path}: {value}", _ratios(each.gains), _ratios(each.losses), each.change.note))
    return table(rows)


def advice_json(now: Figures, found: Sequence[Advice]) -> str:
    """Figures are floors; ratios are new over old, above 1 is better."""
    advice: list[dict[str, Any]] = [
        {
            "path": each.change.path,
            "value": each.change.value,
            "note": each.change.note,
            "gains": each.gains,
            "losses": each.losses,
            "figures": each.after,
        }
        for each in found
    ]
    return msgspec.json.format(msgspec.json.encode({"figures": now, "advice": advice}), indent=2).decode()


def _ratios(ratios: dict[str, float]) -> str:
    return ", ".join(f"{_WORDS[name]} x{ratio:.2f}" for name, ratio in ratios.items()) or "-"
