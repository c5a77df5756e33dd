"""Which cases run of tests that have many, where not all do: `make test` runs some, and so does `make sanitize`."""

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

MARK = "many_cases"
MOST = os.environ.get("APPLIANCE_TEST_CASES")

Case = TypeVar("Case")


def leave_out(config: pytest.Config, items: list[pytest.Item], most: int) -> None:
    """Keeps so many cases of each test that is marked, spread evenly over all. Which ones, the seed of the order says:
    others run the next time."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in sorted(items, key=lambda item: item.nodeid):
        if item.get_closest_marker(MARK) is not None:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    seed = config.getoption("randomly_seed", 0)
    left_out = {item for cases in tests.values() for item in left_out_of(cases, most, seed)}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))


def left_out_of(cases: Sequence[Case], most: int, seed: int) -> list[Case]:
    """Returns all but `most` of the cases. Those that stay lie in even steps, from the case of the seed on."""
    kept = {(len(cases) * number // most + seed) % len(cases) for number in range(most)}
    return [case for number, case in enumerate(cases) if number not in kept]
