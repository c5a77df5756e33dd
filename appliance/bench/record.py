"""What happened to each request, and the figures drawn from it. Times are seconds of one monotonic clock."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from appliance.base.percentiles import percentile

PERCENTILES = (50, 90, 95, 99)


class MeasuredRequest(msgspec.Struct, kw_only=True):
    """token_times: one entry each time output arrived, with the tokens that came with it in `token_counts`.
    num_prompts: of one request to a model that pools, which may hold several. answer_sha256: of the answer's tokens
    as a JSON list, where an engine in this process said them."""

    started: float
    finished: float = 0.0
    token_times: list[float] = []
    token_counts: list[int] = []
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    num_drafts: int = 0  # that steps verified, and how many of their tokens were accepted
    accepted_tokens: int = 0
    num_prompts: int = 1
    answer_sha256: str | None = None
    error: str | None = None

    @property
    def ttft(self) -> float:
        return (self.token_times[0] if self.token_times else self.finished) - self.started

    @property
    def e2el(self) -> float:
        return self.finished - self.started

    @property
    def tpot(self) -> float | None:
        """Mean time a token after the first; None with fewer than two tokens or without a stream."""
        if self.output_tokens < 2 or len(self.token_times) < 2:
            return None
        return (self.token_times[-1] - self.token_times[0]) / (self.output_tokens - 1)

    @property
    def itl(self) -> list[float]:
        """Gaps between arrivals. Several tokens in one arrival make one gap, as a reader would see it."""
        return [later - earlier for earlier, later in zip(self.token_times, self.token_times[1:], strict=False)]


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class RoundFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one round. Latencies in seconds; throughputs in requests or tokens a second."""

    duration_s: float
    completed: int
    failed: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    request_throughput: float
    output_throughput: float
    total_throughput: float
    prefill_throughput: float | None  # input tokens over time to first token, median over requests
    decode_throughput: float | None  # tokens a second of one stream after its first token, median over requests
    goodput: float | None  # requests a second that met every SLO; None without one
    latencies: dict[str, Distribution]  # ttft, itl, tpot, e2el
    prompt_throughput: float | None = None  # prompts a second, where requests hold several
    acceptance_length: float | None = None  # tokens of a step that verified a draft; None where none did


def distribution(values: Iterable[float]) -> Distribution | None:
    ordered = sorted(values)
    if not ordered:
        return None
    ranks = {f"p{p}": percentile(ordered, p) for p in PERCENTILES}
    return Distribution(mean=statistics.fmean(ordered), max=ordered[-1], **ranks)


def summarize(records: Sequence[MeasuredRequest], slo: Mapping[str, float]) -> RoundFigures:
    done = [record for record in records if record.error is None]
    started = min((record.started for record in records), default=0.0)
    duration = max((record.finished for record in records), default=0.0) - started
    span = max(duration, 1e-9)
    output_tokens = sum(record.output_tokens for record in done)
    input_tokens = sum(record.input_tokens for record in done)
    prompts = sum(record.num_prompts for record in done)
    drafts = sum(record.num_drafts for record in done)
    accepted = sum(record.accepted_tokens for record in done)
    good = sum(meets_slo(record, slo) for record in done)
    return RoundFigures(
        duration_s=duration,
        completed=len(done),
        failed=len(records) - len(done),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=sum(record.cached_tokens for record in done),
        request_throughput=len(done) / span,
        output_throughput=output_tokens / span,
        total_throughput=(input_tokens + output_tokens) / span,
        prefill_throughput=_median(r.input_tokens / r.ttft for r in done if len(r.token_times) > 1 and r.ttft > 0),
        decode_throughput=_median(1 / r.tpot for r in done if r.tpot),
        goodput=good / span if slo else None,
        latencies=_latencies(done),
        prompt_throughput=prompts / span if prompts > len(done) else None,
        acceptance_length=1 + accepted / drafts if drafts else None,
    )


def meets_slo(record: MeasuredRequest, slo: Mapping[str, float]) -> bool:
    """Returns whether one request kept every target. Targets are named metric_percentile; each is a bound here."""
    measured = {"ttft": record.ttft, "itl": record.tpot, "tpot": record.tpot, "e2el": record.e2el}
    for name, bound in slo.items():
        value = measured.get(name.partition("_")[0])
        if value is not None and value > bound:
            return False
    return True


def missed_targets(rounds: Sequence[RoundFigures], slo: Mapping[str, float]) -> list[str]:
    """Targets that the median over rounds misses, in words; a name such as ttft_p95 picks metric and percentile.

    Where there are targets, requests that failed are a miss too: refusing them is no way to be quick.
    """
    missed = []
    for name, bound in slo.items():
        metric, _, rank = name.partition("_")
        spreads = [figures.latencies.get(metric) for figures in rounds]
        values = [getattr(spread, rank or "p50") for spread in spreads if spread is not None]
        value = statistics.median(values) if values else None
        if value is None or value > bound:
            shown = "was not measured" if value is None else f"is {value * 1e3:.1f} ms"
            missed.append(f"{name} {shown}, the target is {bound * 1e3:.1f} ms")
    failed, total = sum(one.failed for one in rounds), sum(one.failed + one.completed for one in rounds)
    if slo and failed:
        missed.append(f"{failed} of {total} requests failed")
    return missed


def _latencies(done: Sequence[MeasuredRequest]) -> dict[str, Distribution]:
    streamed = [record for record in done if record.token_times]
    found = {
        "ttft": distribution(record.ttft for record in streamed),
        "itl": distribution(gap for record in streamed for gap in record.itl),
        "tpot": distribution(record.tpot for record in streamed if record.tpot is not None),
        "e2el": distribution(record.e2el for record in done),
    }
    return {name: spread for name, spread in found.items() if spread is not None}


def _median(values: Iterable[float]) -> float | None:
    ordered = list(values)
    return statistics.median(ordered) if ordered else None
