"""A benchmark's result: everything needed to say what was measured, on what, and to compare two of them."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from appliance.base.errors import NotComparableError
from appliance.bench.record import MeasuredRequest, RoundFigures
from appliance.bench.replicas import ReplicaShare
from appliance.bench.roofline import Roofline
from appliance.bench.scenario import Scenario
from appliance.engine.profile import EngineProfile
from appliance.hardware import MeasuredFacts

RESULT_VERSION = 1

# Figure, whether higher is better. A comparison prints them in this order.
FIGURES: tuple[tuple[str, bool], ...] = (
    ("prefill_throughput", True),
    ("decode_throughput", True),
    ("request_throughput", True),
    ("prompt_throughput", True),
    ("output_throughput", True),
    ("total_throughput", True),
    ("goodput", True),
    ("acceptance_length", True),
    ("ttft_p50", False),
    ("ttft_p95", False),
    ("itl_p50", False),
    ("itl_p95", False),
    ("tpot_p50", False),
    ("e2el_p50", False),
    ("e2el_p95", False),
    ("e2el_p99", False),
    ("duration_s", False),
)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Median, least and greatest of one figure over the rounds."""

    median: float
    min: float
    max: float
    rounds: int


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    version: int = RESULT_VERSION
    label: str  # whose figures these are: "appliance", "llama-server bf16"
    scenario: Scenario
    target: str  # URL, or "in process"
    model: str
    spec_sha256: str | None
    engine_sha256: str | None
    lock_sha256: str | None = None  # of the lock file beside the spec
    machine: dict[str, Any]
    appliance_version: str
    time: str  # ISO 8601, UTC
    figures: dict[str, Spread]
    rounds: tuple[RoundFigures, ...]
    records: tuple[MeasuredRequest, ...]  # of the last round
    slo: dict[str, float] = {}
    floor: dict[str, float] = {}  # the most that the plan's estimate allows, by figure
    replicas: tuple[ReplicaShare, ...] = ()  # of a server that has several
    profile: EngineProfile | None = None  # of all rounds
    rooflines: tuple[Roofline, ...] = ()
    measured: MeasuredFacts | None = None  # of a roofline: what `doctor` measured,
    given: MeasuredFacts | None = None  # and what the machine gave around the run


def spread_of(rounds: Sequence[RoundFigures]) -> dict[str, Spread]:
    """Median, least and greatest of every figure that each round has; none of output where nothing is generated."""
    found = {}
    generates = any(figures.output_tokens for figures in rounds)
    for name, _ in FIGURES:
        if name == "output_throughput" and not generates:
            continue
        values = [value for value in (_figure(figures, name) for figures in rounds) if value is not None]
        if values:
            found[name] = Spread(median=statistics.median(values), min=min(values), max=max(values), rounds=len(values))
    return found


def _figure(figures: RoundFigures, name: str) -> float | None:
    metric, _, rank = name.partition("_")
    if metric in ("ttft", "itl", "tpot", "e2el"):
        spread = figures.latencies.get(metric)
        return None if spread is None else float(getattr(spread, rank))
    value = getattr(figures, name)
    return None if value is None else float(value)


def save(result: BenchResult, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))


def load(path: Path) -> BenchResult:
    """Raises NotComparableError when the file is not a result of this version."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=BenchResult)
    except (OSError, msgspec.MsgspecError) as error:
        raise NotComparableError(f"{path}: not a benchmark result: {error}") from error


def compare(ours: BenchResult, theirs: BenchResult) -> dict[str, tuple[float, float, float]]:
    """figure -> (ours, theirs, ratio), ratio above 1 meaning ours is better.

    Raises NotComparableError when the two did not run the same work.
    """
    work = [_work(result.scenario) for result in (ours, theirs)]
    if work[0] != work[1]:
        differing = sorted(key for key in work[0] if work[0][key] != work[1][key])
        raise NotComparableError(
            f"the scenarios differ in {', '.join(differing)}", hint="run both with the same scenario or preset"
        )
    table = {}
    for name, higher_is_better in FIGURES:
        if name in ours.figures and name in theirs.figures:
            mine, other = ours.figures[name].median, theirs.figures[name].median
            top, bottom = (mine, other) if higher_is_better else (other, mine)
            table[name] = (mine, other, top / bottom if bottom else float("inf"))
    return table


def same_answers(ours: BenchResult, theirs: BenchResult) -> tuple[int, int] | None:
    """Returns how many requests of the last rounds had the same tokens, and of how many; None unless engines in the
    process said them, in as many rounds, as each round has tokens of its own."""
    if ours.scenario.repeats != theirs.scenario.repeats:
        return None
    pairs = [
        (mine.answer_sha256, other.answer_sha256)
        for mine, other in zip(ours.records, theirs.records, strict=False)
        if mine.answer_sha256 and other.answer_sha256
    ]
    return (sum(mine == other for mine, other in pairs), len(pairs)) if pairs else None


def _work(scenario: Scenario) -> dict[str, Any]:
    """The fields that decide the work; a name, the kind of driver and the number of rounds do not."""
    fields: dict[str, Any] = msgspec.to_builtins(scenario)
    return {
        key: value for key, value in fields.items() if key not in ("name", "kind", "repeats", "num_warmups", "stream")
    }
