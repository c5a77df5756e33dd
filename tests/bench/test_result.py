"""Results survive a round trip, compare only with the same work, and make a report that stands alone."""

import re
from pathlib import Path

import msgspec
import pytest

from appliance.base.errors import NotComparableError
from appliance.bench.html import render_html
from appliance.bench.record import MeasuredRequest, summarize
from appliance.bench.result import BenchResult, compare, load, same_answers, save, spread_of
from appliance.bench.scenario import PRESETS
from appliance.bench.text import render, render_comparison


def result(label: str, step: float, preset: str = "online16") -> BenchResult:
    records = tuple(
        MeasuredRequest(
            started=i * 0.1,
            finished=i * 0.1 + 4 * step,
            token_times=[i * 0.1 + step * (k + 1) for k in range(4)],
            token_counts=[1, 1, 2, 1],
            input_tokens=300,
            output_tokens=5,
        )
        for i in range(8)
    )
    rounds = (summarize(records, {}), summarize(records[:4], {}))
    return BenchResult(
        label=label,
        scenario=PRESETS[preset],
        target="in process",
        model="<m>",
        spec_sha256=None,
        engine_sha256=None,
        machine={"cpu": "test"},
        appliance_version="0",
        time="2026-01-01T00:00:00Z",
        figures=spread_of(rounds),
        rounds=rounds,
        records=records,
    )


def test_save_and_load(tmp_path: Path) -> None:
    first = result("ours", 0.1)
    save(first, tmp_path / "r.json")
    assert msgspec.json.encode(load(tmp_path / "r.json")) == msgspec.json.encode(first)


def test_a_file_that_is_no_result_is_not_comparable(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(NotComparableError, match="not a benchmark result"):
        load(tmp_path / "r.json")


def test_ratios_are_above_one_where_ours_is_better() -> None:
    table = compare(result("ours", 0.1), result("theirs", 0.2))
    assert table["ttft_p50"][2] == pytest.approx(2.0)
    assert table["decode_throughput"][2] == pytest.approx(2.0)
    assert "ratio" in render_comparison("ours", "theirs", table)


def test_answers_with_the_same_tokens_are_counted() -> None:
    def said(*digests: str | None) -> BenchResult:
        records = tuple(MeasuredRequest(started=0.0, answer_sha256=digest) for digest in digests)
        return msgspec.structs.replace(result("a", 1.0), records=records)

    assert same_answers(said("1", "2", "3"), said("1", "2", "4")) == (2, 3)
    assert same_answers(said("1"), said(None)) is None
    assert "the same tokens in 2 of 3" in render_comparison("a", "b", {}, (2, 3))


def test_different_work_is_refused_and_the_difference_named() -> None:
    with pytest.raises(NotComparableError, match="max_concurrency"):
        compare(result("ours", 0.1), result("theirs", 0.1, preset="single"))


def test_text_shows_median_and_spread() -> None:
    shown = render(result("ours", 0.1))
    assert re.search(r"ttft_p50\s+100\.00\s+100\.00\s+100\.00  ms", shown)


def test_the_report_needs_nothing_from_outside_and_escapes_names() -> None:
    page = render_html([result("ours", 0.1)])
    assert page.count("<svg") == 5
    assert "<m>" not in page
    assert not re.search(r"(src|href)=|https?://|<script", page)


def test_text_shows_how_much_of_the_estimate_was_reached() -> None:
    measured = result("ours", 0.1)
    assert "estimate" not in render(measured)
    most = 4 * measured.figures["output_throughput"].median
    text = render(msgspec.structs.replace(measured, floor={"output_throughput": most, "goodput": 1.0}))
    assert f"of the plan's estimate: output_throughput 25% of {most:.1f} tok/s" in text
