"""Copies of experts are spread by load, without a second copy in a rank, and experts stay where they can."""

import random

import pytest

from appliance.program.balance import balanced, balancedness, loads_of_places


def of_ranks(places: tuple[int, ...], num_ranks: int) -> list[tuple[int, ...]]:
    room = len(places) // num_ranks
    return [places[start : start + room] for start in range(0, len(places), room)]


def test_a_busy_expert_gets_the_copies() -> None:
    places = balanced([90, 10, 10, 10, 10, 10], num_places=8, num_ranks=4)
    assert places.count(0) == 3
    assert balancedness([90, 10, 10, 10, 10, 10], places, 4) == pytest.approx(0.875)
    assert balancedness([90, 10, 10, 10, 10, 10], (0, 1, 2, 3, 4, 5), 3) < 0.5


def test_the_example_of_the_algorithm() -> None:
    """The loads of the first layer in DeepSeek's example: 16 places in 8 ranks are nearly even."""
    loads = [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86]
    places = balanced(loads, num_places=16, num_ranks=8)
    assert [places.count(expert) for expert in range(12)] == [1, 2, 1, 1, 2, 2, 1, 1, 1, 1, 2, 1]
    assert balancedness(loads, places, 8) > 0.9


@pytest.mark.parametrize("seed", range(40))
def test_places_are_whole(seed: int) -> None:
    rng = random.Random(seed)
    num_ranks = rng.randint(1, 6)
    room = rng.randint(1, 6)
    num_experts = rng.randint(room, room * num_ranks)
    loads = [rng.choice((0, rng.random() ** 6)) for _ in range(num_experts)]
    former = balanced([1.0] * num_experts, room * num_ranks, num_ranks)
    places = balanced(loads, room * num_ranks, num_ranks, former)
    assert set(places) == set(range(num_experts))
    assert all(len(set(rank)) == room for rank in of_ranks(places, num_ranks))
    assert places == balanced(loads, room * num_ranks, num_ranks, former)
    assert balanced(loads, room * num_ranks, num_ranks, places) == places, "equal loads move nothing"


def test_experts_stay_where_they_can() -> None:
    loads, former = [8, 7, 1, 1, 1, 1, 1, 1], (0, 1, 2, 3, 4, 5, 6, 7)
    places = balanced(loads, 8, 2, former)
    assert balancedness(loads, places, 2) > balancedness(loads, former, 2)
    moved = sum(one != other for one, other in zip(former, places, strict=True))
    assert 0 < moved <= 4


def test_loads_of_copies_are_shared() -> None:
    assert loads_of_places([6, 2], (0, 1, 0, 1), 2) == [[3, 1], [3, 1]]
    assert balancedness([0, 0], (0, 1), 2) == 1.0


@pytest.mark.parametrize("shape", [(4, 5, 2), (4, 3, 1), (2, 6, 2)])
def test_shapes_that_cannot_be(shape: tuple[int, int, int]) -> None:
    experts, places, ranks = shape
    with pytest.raises(ValueError, match="places for"):
        balanced([1.0] * experts, places, ranks)
