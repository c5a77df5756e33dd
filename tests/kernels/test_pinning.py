"""Memory of NUMA nodes: what the system is asked for, and a system that refuses."""

import contextlib
import logging
import os
from pathlib import Path

import pytest

from appliance.kernels.cpu.library import load_level
from appliance.kernels.cpu.pinning import place_caller
from appliance.kernels.errors import BindError
from appliance.kernels.execution import Placement

LIBRARY = load_level("generic")
CPU = min(os.sched_getaffinity(0))


def policies() -> set[str]:
    """The policies of this thread's memory."""
    return {line.split()[1] for line in Path("/proc/thread-self/numa_maps").read_text().splitlines()}


def test_memory_is_taken_of_the_nodes_of_a_rank(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), contextlib.ExitStack() as resources:
        place_caller(LIBRARY, resources, Placement(1, cpus=(CPU,), nodes=(0,)))
        if "memory cannot be taken of these nodes" in caplog.text:
            pytest.skip("the system lets no process choose its memory's node")
        assert "prefer:0" in policies()
    assert "prefer:0" not in policies()


def test_a_node_that_is_refused_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), contextlib.ExitStack() as resources:
        place_caller(LIBRARY, resources, Placement(1, cpus=(CPU,), nodes=(1000,)))
    assert "memory cannot be taken of these nodes" in caplog.text


def test_a_cpu_that_is_not_there_is_refused() -> None:
    with contextlib.ExitStack() as resources, pytest.raises(BindError, match="cannot be bound to CPU 1023"):
        place_caller(LIBRARY, resources, Placement(1, cpus=(1023,)))
