"""Ranks on two nodes of a cluster: equal tokens, a node that is lost, and what no node has room for."""

import threading
from pathlib import Path
from typing import Any

import pytest

from appliance.base.errors import ApplianceError, SpecError
from appliance.plan.prepare import prepare
from tests.engine.test_rank_group import SPEC, TORCH, answers, engine_of, run_until_it_fails
from tests.models.tiny import make_tiny

pytestmark = pytest.mark.filterwarnings("ignore")  # those of Ray are not ours
RANKS = ("parallelism.tensor=2", "parallelism.nnodes=2", "parallelism.backend=ray")
WAITS = ("parallelism.distributed_timeout=20s", "parallelism.join_timeout=60s")
NODE = {"num_cpus": 2, "memory": 2 << 30, "object_store_memory": 100 << 20}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    make_tiny("llama", folder / "model")
    path = folder / "spec.yaml"
    path.write_text(SPEC.format(source=folder / "model"))
    return path


def test_ranks_of_two_nodes_answer_as_one_does_and_a_lost_node_is_named(cluster: Any, spec: Path) -> None:
    with engine_of(spec, TORCH) as one:
        expected = answers(one, 1)
    node = cluster.add_node(**NODE)
    engine = engine_of(spec, TORCH, *RANKS, *WAITS)
    assert answers(engine, 1) == expected
    killer = threading.Timer(0.3, lambda: cluster.remove_node(node, allow_graceful=False))
    killer.start()
    assert run_until_it_fails(engine) == "rank 1 ended: its connection ended (node 127.0.0.1)"
    engine.close()
    killer.join()
    other = cluster.add_node(**NODE)
    with engine_of(spec, TORCH, *RANKS, *WAITS) as again:  # as the rule of restarts has it
        assert answers(again, 1) == expected
    cluster.remove_node(other)


def test_what_no_node_has_room_for_is_said_by_node(cluster: Any, spec: Path) -> None:
    node = cluster.add_node(num_cpus=0, memory=1 << 30, object_store_memory=100 << 20)
    with pytest.raises(ApplianceError, match=r"no 1 nodes beside this one with room for 1 ranks .* CPU 0 of 1"):
        engine_of(spec, TORCH, *RANKS, "parallelism.join_timeout=2s")
    cluster.remove_node(node)


def test_ray_without_other_nodes_is_refused(spec: Path) -> None:
    with pytest.raises(SpecError) as raised:
        prepare(str(spec), (TORCH, "parallelism.tensor=2", "parallelism.backend=ray"))
    assert any("parallelism.nnodes is 1" in each.message for each in raised.value.diagnostics)
