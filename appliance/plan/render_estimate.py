"""An estimate and advice as text for people, and as JSON."""

from collections.abc import Sequence
from typing import Any

import msgspec

from appliance.hardware.speed import DeviceSpeed, Speed
from appliance.plan.advice import Advice, Figures, missed_bounds
from appliance.plan.estimate import Estimate
from appliance.plan.render import LABEL, table
from appliance.plan.spread import CoreUse
from appliance.plan.types import EnginePlan

_WORDS = {
    "prefill": "prompts",
    "decode": "one stream",
    "throughput": "all streams",
    "itl": "time between tokens",
    "cache": "tokens the cache holds",
}


def estimate_lines(plan: EnginePlan, alone: Estimate, full: Estimate, speed: Speed) -> list[str]:
    prompt = alone.workload.prompt
    lines = [
        f"one prompt of {prompt:,} tokens: the first token after {_time(alone.ttft_s)}"
        f" ({alone.prefill_tokens_per_s:.0f} tokens/s),"
        f" then {alone.itl_s * 1e3:.1f} ms a token ({alone.decode_tokens_per_s:.1f} tokens/s)",
        f"{full.workload.streams} streams at once: {full.itl_s * 1e3:.1f} ms a token, {full.output_tokens_per_s:.0f}"
        f" tokens/s in all, bound by {full.decode_bound}",
        _origin(speed),
    ]
    if plan.parallel.replicas > 1:
        lines.insert(0, f"of each of {plan.parallel.replicas} replicas, while the others have as much to do:")
    shown = [f"{'estimate' if not at else '':<{LABEL}}{line}" for at, line in enumerate(lines)]
    return [*shown, *(f"warning: {text}" for text in missed_bounds(plan, alone, full))]


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


def _origin(speed: Speed) -> str:
    if isinstance(speed, DeviceSpeed):
        return f"predicted from {speed.described}; bench says what is reached"
    return f"at best, with the {speed.read_bandwidth / 1e9:.1f} GB/s measured here; bench says what is reached"


def advice_lines(found: Sequence[Advice]) -> list[str]:
    if not found:
        return [f"{'advice':<{LABEL}}no change of one field would gain anything"]
    rows = [("advice", "better", "worse", "costs")]
    for each in found:
        value = str(each.change.value).lower() if isinstance(each.change.value, bool) else each.change.value
        rows.append((f"{each.change.path}: {value}", _ratios(each.gains), _ratios(each.losses), each.change.note))
    return table(rows)


def spread_lines(found: Sequence[CoreUse]) -> list[str]:
    """Compares ranks and replicas with one rank of one engine."""
    if not found:
        return []
    rows = [("several", "a prompt", "a stream", "all streams")]
    for each in found:
        prefill, decode, every = (f"x{ratio:.2f}" for ratio in (each.prefill, each.decode, each.throughput))
        rows.append((f"{each.path}: {each.count}", prefill, decode, every))
    return table(rows)


def advice_json(now: Figures, found: Sequence[Advice], several: Sequence[CoreUse]) -> str:
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
    encoded = msgspec.json.encode({"figures": now, "advice": advice, "several": several})
    return msgspec.json.format(encoded, indent=2).decode()


def _ratios(ratios: dict[str, float]) -> str:
    return ", ".join(f"{_WORDS[name]} x{ratio:.2f}" for name, ratio in ratios.items()) or "-"
