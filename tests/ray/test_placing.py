"""Which nodes engines of a batch go to."""

import pytest

from appliance.hardware import load_facts
from appliance.hardware.ray_cluster import ClusterNode
from appliance.ray.placing import EngineNeeds, NoRoomError, place

FACTS = load_facts("server-epyc-9654")


def node(name: str, cores: int, memory_gib: int, accelerators: int = 0) -> ClusterNode:
    return ClusterNode(
        id=name,
        address=f"10.0.0.{name}",
        facts=FACTS,
        num_cores=cores,
        memory_bytes=memory_gib << 30,
        num_accelerators=accelerators,
    )


NEED = EngineNeeds(num_cores=4, memory_bytes=8 << 30, num_accelerators=0)


def placed(nodes: list[ClusterNode], needs: EngineNeeds | str = NEED, wanted: int | None = None) -> str:
    return "".join(each.id for each in place(nodes, {each.id: needs for each in nodes}, wanted))


def test_as_many_as_have_room_the_roomiest_first() -> None:
    nodes = [node("1", 8, 64), node("2", 16, 20), node("3", 2, 64)]
    assert placed(nodes) == "1212"
    assert placed(nodes, wanted=3) == "121"


def test_accelerators_count() -> None:
    need = EngineNeeds(num_cores=1, memory_bytes=0, num_accelerators=2)
    assert placed([node("1", 64, 64), node("2", 8, 64, 5)], need) == "22"


def test_a_misfit_says_what_each_node_lacks() -> None:
    nodes = [node("1", 2, 64), node("2", 16, 4)]
    with pytest.raises(NoRoomError) as raised:
        placed(nodes)
    assert "node 10.0.0.1: an engine needs 4 CPUs, and Ray has 2 of it" in str(raised.value)
    assert "node 10.0.0.2: an engine needs 8.00 GiB of memory, and Ray has 4.00 GiB of it" in str(raised.value)
    with pytest.raises(NoRoomError, match=r"node 10.0.0.1: it is too small"):
        placed(nodes[:1], "it is too small")


def test_fewer_than_were_asked_for_is_a_misfit() -> None:
    with pytest.raises(NoRoomError, match=r"no room for 3 engines \(2 fit\): node 10.0.0.1: room for 2"):
        placed([node("1", 8, 64)], wanted=3)
    with pytest.raises(NoRoomError, match="it has no nodes"):
        placed([])
