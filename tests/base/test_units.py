"""Counts, sizes and durations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base import units


@pytest.mark.parametrize(
    ("text", "count"),
    [("1k", 1000), ("1K", 1024), ("25.6k", 25_600), ("32k", 32_000), ("32K", 32_768), ("0.5M", 524_288), ("7", 7)],
)
def test_counts(text: str, count: int) -> None:
    assert units.parse_count(text) == count


@pytest.mark.parametrize("text", ["", "k", "1kk", "1.0005k", "-1k", "1e3", "1 K B", "0x10", "9" * 60])
def test_wrong_counts(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        units.parse_count(text)


@pytest.mark.parametrize(
    ("text", "size"), [("512MB", 512 * 10**6), ("4GiB", 4 * 2**30), ("1.5GiB", 3 * 2**29), ("8 KiB", 8192), ("1B", 1)]
)
def test_sizes(text: str, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize("text", ["4096", "4Gb", "4 bytes", "-1GiB", "0.3B"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        units.parse_size(text)


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("2s", 2.0), ("1m", 60.0), ("1.5h", 5400.0)])
def test_durations(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


@given(st.integers(min_value=0, max_value=2**50))
def test_size_text_reads_back(size: int) -> None:
    assert units.parse_size(units.size_text(size)) == size


@given(st.integers(min_value=0, max_value=10**9))
def test_duration_text_reads_back(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert units.parse_duration(units.duration_text(seconds)) == seconds


def test_texts_are_short() -> None:
    assert [units.size_text(size) for size in (0, 4 * 2**30, 65536, 1000)] == ["0B", "4GiB", "64KiB", "1000B"]
    assert [units.duration_text(s) for s in (600.0, 0.5, 10.0, 90.0, 0.0)] == ["10m", "500ms", "10s", "90s", "0s"]
    assert units.format_size(3 * 2**29) == "1.50 GiB"
    assert units.format_duration(245) == "4 min 05 s"
