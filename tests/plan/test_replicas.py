"""Replicas: what each has of the machine, and which of the deployment's a server has."""

import pytest

from appliance.plan.render import render_text
from appliance.plan.types import EnginePlan
from tests.plan.machines import MODEL, load, plan


def budget(plan: EnginePlan) -> int:
    return sum(memory.budget_bytes for memory in plan.memory)


def test_each_has_its_share_of_cores_and_memory() -> None:
    one, two = plan(load(MODEL)), plan(load(MODEL + "parallelism: {data: 2}\n"))
    assert (one.parallel.replicas, two.parallel.replicas) == (1, 2)
    assert two.kernels.num_threads == one.kernels.num_threads // 2
    assert abs(2 * budget(two) - budget(one)) <= 2
    assert two.engine_sha256 != one.engine_sha256


@pytest.mark.parametrize(
    ("fields", "replicas", "first"),
    [
        ("data: 4", 4, 0),
        ("data: 4, data_parallel_size_local: 4", 4, 0),
        ("data: 4, data_parallel_rank: 2", 1, 2),
        ("data: 4, data_parallel_hybrid_lb: true, data_parallel_start_rank: 2, data_parallel_size_local: 2", 2, 2),
    ],
)
def test_which_are_here(fields: str, replicas: int, first: int) -> None:
    parallel = plan(load(MODEL + f"parallelism: {{{fields}}}\n")).parallel
    assert (parallel.data, parallel.replicas, parallel.first_replica) == (4, replicas, first)


def test_the_plan_says_so() -> None:
    def line(fields: str) -> str:
        text = render_text(plan(load(MODEL + f"parallelism: {{{fields}}}\n")))
        return next((each for each in text.splitlines() if each.startswith("replicas ")), "")

    assert line("data: 1") == ""
    assert "2 engines, each with the threads and the memory shown here" in line("data: 2")
    assert "number 2 of 4" in line("data: 4, data_parallel_rank: 2")
    hybrid = "data_parallel_hybrid_lb: true, data_parallel_start_rank: 2, data_parallel_size_local: 2"
    assert "2 engines (numbers 2 to 3 of 4)" in line(f"data: 4, {hybrid}")


def test_a_server_with_one_of_several_has_the_whole_machine() -> None:
    alone, one_of_four = plan(load(MODEL)), plan(load(MODEL + "parallelism: {data: 4, data_parallel_rank: 2}\n"))
    assert one_of_four.kernels.num_threads == alone.kernels.num_threads
    assert budget(one_of_four) == budget(alone)
