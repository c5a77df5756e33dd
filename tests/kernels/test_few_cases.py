"""The few cases that run under the thread sanitizer."""

import pytest

from tests.kernels.conftest import left_out_of


@pytest.mark.parametrize(
    ("most", "left"),
    [(1, "bcdefg"), (2, "bcefg"), (7, ""), (9, "")],
)
def test_the_cases_that_stay_are_spread_over_all(most: int, left: str) -> None:
    assert "".join(left_out_of("abcdefg", most)) == left
