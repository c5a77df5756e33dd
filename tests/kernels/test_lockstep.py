"""The page by which replicas run their steps together: who is wanted, who is late, and who is gone."""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from appliance.engine.rounds import watch
from appliance.kernels.lockstep import Lockstep
from appliance.kernels.ranks import RankError, SharedMemory
from appliance.program.shard_layout import Shard
from appliance.program.slots import Extent


def replicas(count: int, timeout_s: float = 10.0, num_ranks: int = 1) -> list[Lockstep]:
    """All ranks of so many replicas, one replica after the other."""
    memory = SharedMemory()
    wakes = [os.eventfd(0) for _ in range(count)]
    shards = [Shard(rank, num_ranks) for rank in range(num_ranks)]
    return [Lockstep(memory, number, count, timeout_s, wakes, shard=each) for number in range(count) for each in shards]


def rows(tokens: int, sampled: int) -> dict[Extent, int]:
    return {Extent.TOKENS: tokens, Extent.SAMPLED: sampled}


def test_a_round_tells_where_the_rows_of_each_are() -> None:
    group = replicas(3)
    with ThreadPoolExecutor(3) as threads:
        for said in ([(5, 1), (0, 0), (7, 7)], [(1, 1), (2, 1), (0, 0)], [(0, 0), (0, 0), (4, 2)]):
            jobs = [threads.submit(each.begin_round, rows(*own)) for each, own in zip(group, said, strict=True)]
            for number, found in enumerate(job.result() for job in jobs):
                before = said[:number]
                assert found.first == rows(sum(t for t, _ in before), sum(s for _, s in before))
                assert found.total == rows(sum(t for t, _ in said), sum(s for _, s in said))


def test_ranks_of_a_replica_have_its_rows() -> None:
    """Each rank says them, and what the first one says counts; one that is late is named by its replica."""
    group = replicas(2, 0.3, num_ranks=2)
    assert [each.ranks.rank for each in group] == [0, 1, 2, 3]
    with ThreadPoolExecutor(4) as threads:
        said = [rows(5, 1)] * 2 + [rows(3, 2)] * 2
        jobs = [threads.submit(each.begin_round, own) for each, own in zip(group, said, strict=True)]
        found = [job.result() for job in jobs]
        assert [each.total for each in found] == [rows(8, 3)] * 4
        assert [each.first for each in found] == [rows(0, 0)] * 2 + [rows(5, 1)] * 2
        group[0].promise()
        assert [each.is_wanted for each in group] == [True] * 4
        late = [threads.submit(each.begin_round, rows(1, 1)) for each in group[:3]]
        assert {str(job.exception()) for job in late} <= {"replica 1 did not come within 0.3 s", "replica 1 is gone"}
    assert group[0].ranks.reason == "replica 1 is gone"


def test_a_promise_is_kept_by_all_and_by_who_made_it() -> None:
    one, other = replicas(2)
    assert not one.is_wanted
    one.promise()
    assert other.is_wanted
    assert one.is_wanted  # its step may be refused before the round begins
    with ThreadPoolExecutor(2) as threads:
        for job in [threads.submit(each.begin_round, rows(0, 0)) for each in (one, other)]:
            job.result()
    assert not one.is_wanted
    assert not other.is_wanted


def test_an_idle_replica_is_woken_and_told_when_another_is_gone() -> None:
    one, other = replicas(2)
    wanted, gone = threading.Event(), list[str]()
    watch(other, wanted.set, gone.append)
    one.promise()
    assert wanted.wait(5.0)
    one.fail()
    wait_until(lambda: bool(gone))
    assert gone == ["replica 0 is gone"]


def test_who_is_late_is_named_by_all() -> None:
    one, other, late = replicas(3, timeout_s=0.2)
    with ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(each.begin_round, rows(1, 1)) for each in (one, other)]
        said = {str(job.exception()) for job in jobs}
    assert said <= {"replica 2 did not come within 0.2 s", "replica 2 is gone"}
    late.begin_round(rows(1, 1))  # all the others have been there
    with pytest.raises(RankError, match="replica 2 is gone"):
        late.wait_loaded()


def test_a_start_waits_for_all_and_ends_with_one() -> None:
    one, other, third = replicas(3)
    with ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(each.wait_loaded) for each in (one, other)]
        time.sleep(0.1)
        assert not any(job.done() for job in jobs)
        third.fail()
        assert {str(job.exception()) for job in jobs} == {"replica 2 is gone"}


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)
