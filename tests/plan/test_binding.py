"""The CPUs of each rank: from lists, and by NUMA node."""

import msgspec
import pytest

from appliance.base.errors import SpecError
from appliance.engine.replica import as_replica
from appliance.hardware import HardwareFacts
from appliance.hardware.facts import NumaNode
from appliance.plan.types import EnginePlan

from .machines import MODEL, decision, load, machine, plan

BIND = "hardware.cpu_omp_threads_bind"


def with_nodes(*nodes: tuple[int, ...]) -> HardwareFacts:
    """A machine of so many nodes, each with these CPUs, that are all cores."""
    facts = machine()
    cpus = tuple(cpu for node in nodes for cpu in node)
    numa = tuple(NumaNode(2 * number, node) for number, node in enumerate(nodes))  # node 1 may be memory alone
    cpu = msgspec.structs.replace(
        facts.cpu,
        affinity=cpus,
        num_cores=len(cpus),
        num_threads=len(cpus),
        num_numa_nodes=len(nodes),
        numa_nodes=numa,
    )
    return msgspec.structs.replace(facts, cpu=cpu)


TWO = with_nodes((0, 1, 2, 3), (4, 5, 6, 7))


def planned(facts: HardwareFacts, *overrides: str) -> EnginePlan:
    return plan(load(MODEL, *overrides), facts=facts)


def test_a_list_for_each_rank() -> None:
    found = planned(TWO, f"{BIND}=0-1,3|4-6", "parallelism.tensor=2")
    assert found.kernels.cpus == ((0, 1, 3), (4, 5, 6))
    assert found.kernels.nodes == ((0,), (2,))
    assert found.kernels.num_threads == 3
    assert "one on each CPU" in decision(found, "kernels.num_threads").reason


def test_replicas_have_cpus_of_their_own() -> None:
    found = planned(TWO, "parallelism.data=2")
    assert (found.kernels.cpus, found.kernels.nodes) == (((0, 1, 2, 3), (4, 5, 6, 7)), ((0,), (2,)))
    listed = planned(TWO, "parallelism.data=2", "parallelism.tensor=2", f"{BIND}=0|1|2-3|6-7")
    assert listed.kernels.cpus == ((0,), (1,), (2, 3), (6, 7))
    assert listed.kernels.num_threads == 1
    first, second = (as_replica(listed, number).kernels for number in (0, 1))
    assert (first.cpus, first.nodes) == (((0,), (1,)), ((0,), (0,)))
    assert (second.cpus, second.nodes) == (((2, 3), (6, 7)), ((0,), (2,)))


def test_a_replica_of_another_machines_numbers_has_the_first_cpus_here() -> None:
    here = ("parallelism.data=4", "parallelism.data_parallel_hybrid_lb=true", "parallelism.data_parallel_start_rank=2")
    found = planned(TWO, *here, "parallelism.data_parallel_size_local=2")
    assert as_replica(found, 2).kernels.cpus == ((0, 1, 2, 3),)
    assert as_replica(found, 3).kernels.cpus == ((4, 5, 6, 7),)


def test_one_list_is_divided_among_ranks() -> None:
    found = planned(TWO, f"{BIND}=2-5", "parallelism.tensor=2")
    assert found.kernels.cpus == ((2, 3), (4, 5))


@pytest.mark.parametrize(
    ("nodes", "ranks", "cpus", "numbers"),
    [
        (((0, 1), (2, 3)), 2, ((0, 1), (2, 3)), ((0,), (2,))),
        (((0, 1), (2, 3)), 4, ((0,), (1,), (2,), (3,)), ((0,), (0,), (2,), (2,))),
        (((0,), (1,), (2,), (3,)), 2, ((0, 1), (2, 3)), ((0, 2), (4, 6))),
    ],
)
def test_ranks_are_where_their_memory_is(
    nodes: tuple[tuple[int, ...], ...],
    ranks: int,
    cpus: tuple[tuple[int, ...], ...],
    numbers: tuple[tuple[int, ...], ...],
) -> None:
    found = planned(with_nodes(*nodes), f"parallelism.tensor={ranks}")
    assert (found.kernels.cpus, found.kernels.nodes) == (cpus, numbers)
    assert "each is where its memory is" in decision(found, "kernels.cpus").reason


@pytest.mark.parametrize(
    ("facts", "overrides"),
    [
        (TWO, ()),
        (with_nodes((0, 1, 2, 3)), ("parallelism.tensor=2",)),
        (TWO, ("parallelism.tensor=2", f"{BIND}=all")),
        (with_nodes((0, 1), (2, 3), (4, 5)), ("parallelism.tensor=2",)),
    ],
)
def test_otherwise_the_system_places_threads(facts: HardwareFacts, overrides: tuple[str, ...]) -> None:
    assert (planned(facts, *overrides).kernels.cpus, planned(facts, *overrides).kernels.nodes) == ((), ())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((f"{BIND}=6-9",), "may not run on CPU 8, 9"),
        ((f"{BIND}=0-1", "hardware.kernels.kernel_set=reference"), "reference binds no threads"),
        ((f"{BIND}='0'", "parallelism.tensor=2"), "1 CPUs for 2 ranks"),
        ((f"{BIND}='0|1'", "parallelism.tensor=2", "parallelism.data=2"), "2 CPU lists for 4 ranks"),
        ((f"{BIND}=0-3", "parallelism.tensor=2", "hardware.num_threads=3"), "3 threads on 2 bound CPUs"),
    ],
)
def test_what_cannot_be_bound_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        planned(TWO, *overrides)
