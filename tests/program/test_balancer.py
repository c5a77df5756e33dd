"""When experts move: by the loads of the last steps, only where it gains, and no more where steps are no faster."""

import numpy as np
import pytest

from appliance.program.balance import balancedness
from appliance.program.balancer import BalanceSettings, ExpertBalancer, ExpertMove

PLACES = ((0, 1, 2, 3),) * 2
UNEVEN = np.array([[8, 8, 1, 1], [1, 1, 1, 1]])  # the busy experts of the first mixture are in one rank


class Steps:
    """Steps that each add to what was counted before."""

    def __init__(self, window_size: int, step_interval: int) -> None:
        self.balancer = ExpertBalancer(BalanceSettings(window_size, step_interval), PLACES, 2)
        self._loads = np.zeros_like(UNEVEN)

    def run(self, num_steps: int, loads: np.ndarray, seconds: float = 1.0) -> list[ExpertMove]:
        """Returns the moves before these steps."""
        moves = []
        for _ in range(num_steps):
            if (move := self.balancer.next_move()) is not None:
                moves.append(move)
            self._loads = self._loads + loads
            self.balancer.note(self._loads, 4, seconds)
        return moves


def test_experts_move_where_it_gains() -> None:
    steps = Steps(32, 10)
    assert steps.run(10, UNEVEN) == []
    (move,) = steps.run(9, UNEVEN)
    assert move.mixture == 0, "the loads of the second are even"
    assert balancedness([8, 8, 1, 1], PLACES[0], 2) < balancedness([8, 8, 1, 1], move.placed, 2) == 1.0
    assert steps.balancer.report().balancedness == 1.0
    assert steps.run(40, UNEVEN) == [], "nothing is left to gain"
    assert steps.balancer.report().num_rearranged == 1


def test_balancedness_is_found_once_in_a_part_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(
        "appliance.program.balancer.balancedness", lambda *each: (asked.append(each), balancedness(*each))[1]
    )
    steps = Steps(160, 1000)  # ten steps each
    for _ in range(40):
        steps.run(1, UNEVEN)
        steps.balancer.report()
    assert len(asked) == 4 * len(PLACES)


def test_the_step_after_a_move_is_not_measured() -> None:
    steps = Steps(4, 10)
    turned = UNEVEN.copy()
    turned[0] = (8, 1, 8, 1)
    steps.run(10, UNEVEN)
    assert len(steps.run(1, turned, seconds=1000.0)) == 1
    steps.run(9, turned, seconds=0.5)
    assert steps.balancer.report().speed_up == 2.0


def test_loads_are_forgotten() -> None:
    steps = Steps(16, 100)
    steps.run(64, UNEVEN)
    assert steps.balancer.report().balancedness < 0.8
    steps.run(18, np.ones((2, 4), int))
    assert steps.balancer.report().balancedness == 1.0


def test_steps_that_are_no_faster_end_it() -> None:
    steps = Steps(4, 10)
    turned = UNEVEN.copy()
    turned[0] = (8, 1, 8, 1)
    moves = steps.run(11, UNEVEN)
    moves += steps.run(10, turned, seconds=2.0)
    report = steps.balancer.report()
    assert (report.num_rearranged, report.is_off) == (2, False)
    assert 0.4 < report.speed_up < 0.7
    steps.run(10, UNEVEN, seconds=4.0)
    assert steps.balancer.report().is_off
    assert steps.run(40, UNEVEN) == []


def test_faster_steps_go_on() -> None:
    steps = Steps(4, 10)
    turned = UNEVEN.copy()
    turned[0] = (8, 1, 8, 1)
    for number, each in enumerate((UNEVEN, turned, UNEVEN, turned)):
        steps.run(10, each, seconds=1.0 / (number + 1))
    assert not steps.balancer.report().is_off
    assert steps.balancer.report().speed_up > 1.0
