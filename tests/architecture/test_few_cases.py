"""The cases that run where not all do."""

from collections import Counter

import pytest

from tests.cases import left_out_of

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("most", "seed", "left"),
    [(1, 0, "bcdefg"), (2, 0, "bcefg"), (2, 1, "acdfg"), (7, 3, ""), (9, 0, "")],
)
def test_the_cases_that_stay_are_spread_over_all(most: int, seed: int, left: str) -> None:
    assert "".join(left_out_of("abcdefg", most, seed)) == left


def test_each_case_runs_as_often_as_any_other() -> None:
    runs = Counter(case for seed in range(100) for case in set(range(100)) - set(left_out_of(range(100), 7, seed)))
    assert set(runs.values()) == {7}


SUITE = """
import pytest

@pytest.mark.many_cases
@pytest.mark.parametrize("case", range(40))
def test_of_many(case): pass

@pytest.mark.parametrize("case", range(40))
def test_of_all(case): pass
"""
PLUGIN = """
from tests.cases import leave_out

def pytest_configure(config):
    config.addinivalue_line("markers", "many_cases: some run")

def pytest_collection_modifyitems(config, items):
    leave_out(config, items, 5)
"""


def test_tests_without_the_mark_run_whole(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    pytester.makeconftest(PLUGIN)
    pytester.runpytest_inprocess("-o", "asyncio_default_fixture_loop_scope=function").assert_outcomes(
        passed=45, deselected=35
    )
