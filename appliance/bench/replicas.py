"""What each replica of a server did in a benchmark, from its metrics before and after."""

import re
from collections.abc import Mapping
from typing import Final

import httpx
import msgspec

from appliance.bench.sse import BenchTarget

_TIMEOUT_S: Final = 10.0
_COUNTS: Final = {
    "appliance_requests_finished_total": "requests",
    "appliance_prompt_tokens_total": "prompt_tokens",
    "appliance_generation_tokens_total": "output_tokens",
}
_SAMPLE = re.compile(rf'^({"|".join(_COUNTS)}){{.*?\bengine="(\d+)".*?}} (\S+)$', re.MULTILINE)

EngineCounts = Mapping[str, Mapping[str, float]]
"""Counters by engine and name."""


class ReplicaShare(msgspec.Struct, frozen=True, kw_only=True):
    """What the replica `engine` did in all rounds and warm-ups. share: of the output tokens of all."""

    engine: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    share: float


def counts_of(target: BenchTarget) -> EngineCounts:
    """Returns the counters of each engine. There are none of a server that shows no such metrics."""
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    try:
        answer = httpx.get(
            f"{target.url.rstrip('/').removesuffix('/v1')}/metrics", headers=headers, timeout=_TIMEOUT_S
        ).raise_for_status()
    except httpx.HTTPError:
        return {}
    return read_counts(answer.text)


def read_counts(metrics: str) -> EngineCounts:
    """Reads the Prometheus text of a server."""
    found: dict[str, dict[str, float]] = {}
    for name, engine, value in _SAMPLE.findall(metrics):
        counts = found.setdefault(engine, dict.fromkeys(_COUNTS.values(), 0.0))
        counts[_COUNTS[name]] += float(value)
    return found


def shares_between(before: EngineCounts, after: EngineCounts) -> tuple[ReplicaShare, ...]:
    """Returns the shares of several replicas by their numbers; none of a server that has one engine."""
    if len(after) < 2:
        return ()
    done = {
        engine: {name: round(value - before.get(engine, {}).get(name, 0.0)) for name, value in counts.items()}
        for engine, counts in after.items()
    }
    total = sum(counts["output_tokens"] for counts in done.values()) or 1
    return tuple(
        ReplicaShare(engine=int(engine), share=round(done[engine]["output_tokens"] / total, 4), **done[engine])
        for engine in sorted(done, key=int)
    )


def balance(shares: tuple[ReplicaShare, ...]) -> float:
    """Returns the smallest share over the greatest: 1 where all did the same."""
    return min(each.share for each in shares) / (max(each.share for each in shares) or 1.0)
