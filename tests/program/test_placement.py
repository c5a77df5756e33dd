"""The places of experts, and the table that finds them."""

import numpy as np
import pytest

from appliance.kernels.expert_tables import ExpertTable
from appliance.program.head_cuts import UncutError
from appliance.program.placement import ExpertPlaces, ExpertPlacing, copy_counts, rows_of_experts


def test_strategies() -> None:
    assert ExpertPlacing().places(5, 2) == ExpertPlaces((0, 1, 2, 3, 4), (0, 3, 5))
    turns = ExpertPlacing("round_robin").places(5, 2)
    assert turns == ExpertPlaces((0, 2, 4, 1, 3), (0, 3, 5))
    assert turns.of(1) == (1, 3)
    assert rows_of_experts(turns.of(1), 10) == ((10, 20), (30, 40))


def test_copies() -> None:
    places = ExpertPlacing(num_redundant=2).places(4, 2)
    assert places.starts == (0, 3, 6)
    assert sorted(places.experts) == [0, 0, 1, 1, 2, 3]
    assert copy_counts(5, 2) == (1, 3, 5)
    for wrong in (1, 6):
        with pytest.raises(UncutError, match="copies cannot be shared"):
            ExpertPlacing(num_redundant=wrong).places(4, 2)


def test_a_table_takes_copies_in_turn() -> None:
    table = ExpertTable(3, (2, 0, 1, 0))
    experts = np.array([[0, 1], [0, 2], [0, 1]], np.int32)
    places = table.find(experts)
    assert places.tolist() == [[1, 2], [3, 0], [1, 2]]
    assert table.loads.tolist() == [3, 2, 1]
    starts, loads = table.starts, table.loads
    table.place((1, 0, 2, 2))
    assert table.starts is starts
    assert table.loads is loads
    assert table.find(experts).tolist() == [[1, 0], [1, 3], [1, 0]]
    for wrong in ((0, 1, 2), (0, 0, 1, 1), (0, 1, 2, 3)):
        with pytest.raises(ValueError, match="every expert has a place"):
            table.place(wrong)
