"""Figures against numpy and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.percentiles import percentile
from appliance.bench.record import MeasuredRequest, meets_slo, missed_targets, summarize


def record(start: float, times: list[float], tokens_in: int = 100) -> MeasuredRequest:
    return MeasuredRequest(
        started=start,
        finished=times[-1],
        token_times=times,
        token_counts=[1] * len(times),
        input_tokens=tokens_in,
        output_tokens=len(times),
    )


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_percentile_is_numpys(values: list[float], percent: float) -> None:
    assert percentile(sorted(values), percent) == pytest.approx(np.percentile(values, percent), rel=1e-9, abs=1e-9)


def test_summary_by_hand() -> None:
    records = [record(0.0, [1.0, 1.5, 2.0]), record(1.0, [1.5, 2.5, 4.0])]
    failed = MeasuredRequest(started=0.0, finished=0.1, error="status 500")
    figures = summarize([*records, failed], {})
    assert (figures.completed, figures.failed, figures.duration_s) == (2, 1, 4.0)
    assert figures.output_throughput == pytest.approx(6 / 4)
    assert figures.total_throughput == pytest.approx(206 / 4)
    assert figures.latencies["ttft"].p50 == pytest.approx(0.75)
    assert figures.latencies["itl"].max == pytest.approx(1.5)
    assert figures.latencies["tpot"].mean == pytest.approx((0.5 + 1.25) / 2)
    assert figures.prefill_throughput == pytest.approx((100 / 1.0 + 100 / 0.5) / 2)
    assert figures.goodput is None


def test_goodput_counts_requests_that_met_every_target() -> None:
    slow_start, slow_tokens, good = record(0.0, [3.0, 3.1]), record(0.0, [0.1, 2.1]), record(0.0, [0.1, 0.2])
    slo = {"ttft_p95": 0.5, "itl_p95": 0.5}
    assert [meets_slo(one, slo) for one in (slow_start, slow_tokens, good)] == [False, False, True]
    figures = summarize([slow_start, slow_tokens, good], slo)
    assert figures.goodput == pytest.approx(1 / 3.1)
    assert [line.split()[0] for line in missed_targets([figures], slo)] == ["ttft_p95", "itl_p95"]


def test_a_target_that_was_not_measured_is_missed() -> None:
    assert missed_targets([summarize([], {})], {"ttft_p95": 1.0}) == [
        "ttft_p95 was not measured, the target is 1000.0 ms"
    ]


def test_the_median_round_is_judged_and_failures_are_a_miss() -> None:
    rounds = [summarize([record(0.0, [first, first + 0.1])], {}) for first in (0.2, 9.0, 0.3)]
    assert missed_targets(rounds, {"ttft_p95": 0.5}) == []
    assert [line.split()[0] for line in missed_targets(rounds, {"ttft_p95": 0.25})] == ["ttft_p95"]
    failed = summarize([record(0.0, [0.1]), MeasuredRequest(started=0.0, finished=0.1, error="status 429")], {})
    assert missed_targets([failed], {"ttft_p95": 1.0}) == ["1 of 2 requests failed"]
    assert missed_targets([failed], {}) == []


def test_the_acceptance_length_counts_the_token_after_each_draft() -> None:
    one, other = record(0.0, [1.0, 1.5]), record(0.0, [1.0, 1.5])
    assert summarize([one, other], {}).acceptance_length is None
    one.num_drafts, one.accepted_tokens = 3, 9
    other.num_drafts, other.accepted_tokens = 1, 1
    assert summarize([one, other], {}).acceptance_length == pytest.approx(1 + 10 / 4)
