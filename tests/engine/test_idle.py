"""What an engine does while no request is open."""

from pathlib import Path

import pytest

from appliance.engine.boot import boot
from appliance.engine.idle import IdleWork
from appliance.engine.scripted import ScriptedExecutable
from appliance.kernels.interface import GraphReport

from .plans import scripted_plan


class GraphedExecutable(ScriptedExecutable):
    """Has three graphs to capture."""

    captured = 0

    def capture_next(self) -> bool:
        self.captured += self.captured < 3
        return self.captured < 3

    @property
    def graphs(self) -> GraphReport:
        return GraphReport(self.captured, 3, self.captured / 8)


@pytest.fixture
def idle(tmp_path: Path) -> IdleWork:
    loop = boot(scripted_plan(tmp_path, num_blocks=12, prefault_blocks=2), lambda phase: None)
    executable = loop._runner.executable
    executable.__class__ = GraphedExecutable
    return IdleWork(executable, loop._scheduler.kv.pool, 2)


def test_memory_comes_before_graphs(idle: IdleWork) -> None:
    captured = []
    while idle.do_next():
        assert idle.graphs is not None
        captured.append(idle.graphs.num_captured)
    assert captured == [0, 0, 1, 2]
    assert idle.graphs is not None
    assert (idle.graphs.num_captured, idle.graphs.num_planned, idle.graphs.seconds) == (3, 3, 0.375)


def test_a_set_without_graphs_tells_of_none(tmp_path: Path) -> None:
    loop = boot(scripted_plan(tmp_path), lambda phase: None)
    assert loop._stats().graphs is None
