"""Replicas that run their steps together share one life: it begins anew for all when one of them has ended."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from appliance.base.sockets import socket_folder
from appliance.kernels.lockstep import Lockstep
from appliance.kernels.ranks import SharedMemory
from appliance.plan.serving_types import RestartPlan
from appliance.service.client import AdmissionLimits, EngineClient
from appliance.service.errors import GroupOverError
from appliance.service.step_group import StepGroup
from appliance.service.supervisor import EnginePaths, Supervisor
from tests.engine.plans import scripted_plan


def group_of_two() -> tuple[StepGroup, list[tuple[int, str]]]:
    over: list[tuple[int, str]] = []
    return StepGroup((4, 5), lambda number, reason: over.append((number, reason))), over


def test_all_join_one_life_and_a_new_one_after_it() -> None:
    group, over = group_of_two()
    first = group.join(4)
    assert group.join(5) == first
    memory, *wakes = first
    view = Lockstep(SharedMemory(os.dup(memory)), 0, 2, 1.0, wakes)
    group.left(5, "it was ended by SIGKILL")
    assert view.ranks.reason == "replica 1 is gone"
    assert over == [(4, "replica 5 is gone: it was ended by SIGKILL")]
    group.left(4, "replica 5 is gone")  # which is why it ended
    assert len(over) == 1
    second = group.join(4)
    assert group.join(5) == second
    fresh = Lockstep(SharedMemory(os.dup(second[0])), 0, 2, 1.0)
    assert not fresh.ranks.has_failed
    group.close()


def test_one_that_starts_again_before_the_others_leaves_them_to_their_end() -> None:
    group, over = group_of_two()
    group.join(4)
    group.join(5)
    group.left(4, "one")
    group.join(4)  # the life of all begins anew
    group.left(5, "of the life before")
    assert over == [(5, "replica 4 is gone: one")]
    group.close()


def test_nothing_is_left_open() -> None:
    group, _ = group_of_two()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        group.join(4)
        group.left(4, "it ended")
    group.close()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_who_is_given_up_takes_the_others_along() -> None:
    group, over = group_of_two()
    group.join(4)
    group.join(5)
    group.give_up(4, "it fails in the same way")
    assert over == [(5, "replica 4 is gone: it fails in the same way")]
    with pytest.raises(GroupOverError, match="replica 4, with which all run their steps, was given up: it fails"):
        group.join(5)
    group.close()


async def test_others_wait_for_none_whose_process_cannot_be_started(tmp_path: Path) -> None:
    """They would wait in memory that the next start shares with nobody."""
    group, over = group_of_two()
    group.join(4)
    rule = RestartPlan(policy="on-failure", max_restarts=1, window_s=600.0, backoff_s=0.01, heartbeat_timeout_s=30.0)
    plan = msgspec.structs.replace(scripted_plan(tmp_path), restart=rule)
    client = EngineClient(AdmissionLimits(max_num_seqs=8, max_waiting=None))
    with socket_folder() as sockets:
        paths = EnginePaths(tmp_path / "plan.json", sockets)
        supervisor = Supervisor(plan, paths, client, command=[str(tmp_path / "none")], replica=5, group=group)
        supervisor.start()
        await asyncio.wait_for(supervisor.settled(), 10)
    assert over == [(4, "replica 5 is gone: the engine cannot be started: No such file or directory")]
    with pytest.raises(GroupOverError, match="it failed 2 times"):
        group.join(4)
    group.close()
