"""What each rank of a group has of a head, of swap space, of adapters of experts, and of the machine's CPUs."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import pytest

from appliance.engine.ranks.group_swap import GroupSwap
from appliance.engine.ranks.handles import RankStartError
from appliance.engine.ranks.meeting import InMemory
from appliance.engine.ranks.messages import Move
from appliance.engine.ranks.rank_process import RankProcess
from appliance.engine.ranks.turns import LoadingTurns
from appliance.engine.step import BlockMove, Moved
from appliance.engine.swap_memory import SwapMemory
from appliance.kernels.interface import Screened
from appliance.plan.prepare import prepare
from tests.engine.test_rank_group import answers, engine_of, pytestmark, rank_processes, spec_of
from tests.models.gguf_adapters import write_adapter

__all__ = ["pytestmark", "spec_of"]


def test_adapters_of_experts_are_those_of_one_rank(spec_of: Callable[[str], Path], tmp_path: Path) -> None:
    """Each rank has what adapters change of its own experts, and nothing of the others'."""
    spec, rng = spec_of("mixtral"), np.random.default_rng(4)
    shapes = json.loads((spec.parent / "model" / "config.json").read_text())
    num, hidden, inner = shapes["num_local_experts"], shapes["hidden_size"], shapes["intermediate_size"]
    tensors = {}
    for name, wide, narrow in (("down", hidden, inner), ("gate", inner, hidden), ("up", inner, hidden)):
        for end, shape in (("a", (num, 4, narrow)), ("b", (num, wide, 4))):
            tensors[f"blk.0.ffn_{name}_exps.weight.lora_{end}"] = 0.3 * rng.standard_normal(shape)
    write_adapter(tmp_path / "adapter.gguf", "llama", 8, tensors)
    lora = f"lora={{max_loras: 1, max_rank: 8, adapters: [{{name: a, source: {tmp_path / 'adapter.gguf'}}}]}}"
    found = []
    round_robin = "parallelism.expert_placement_strategy=round_robin"
    for overrides in ((), ("parallelism.tensor=2",), ("parallelism.tensor=2", round_robin)):
        with engine_of(spec, lora, *overrides) as engine:
            found.append([answers(engine, 1, adapter=adapter) for adapter in (None, "a")])
    assert found[0][0] != found[0][1]
    assert found[1] == found[0]
    assert found[2] == found[0]


@pytest.mark.parametrize("spread", ["parallelism.tensor=2", "parallelism.pipeline=2"])
def test_ranks_screen_their_tokens(spread: str, spec_of: Callable[[str], Path]) -> None:
    """The few largest logits are found without computing all, and they are those of one rank that computes all. The
    head is divided among tensor ranks, and in the last of several stages."""
    screened = ("hardware.kernels.screen_logits=true", spread)
    with engine_of(spec_of("llama")) as one, engine_of(spec_of("llama"), *screened) as two:
        executable = two._loop._runner.executable
        assert isinstance(executable, Screened)
        assert executable.few_logits is not None
        assert ("logit_screen" in executable.memory_bytes) == ("tensor" in spread)  # of the leader
        assert answers(two, 1) == answers(one, 1)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("llama", "parallelism.tensor=2"),
        ("jamba", "parallelism.tensor=2"),
        ("llama", "parallelism.pipeline=2"),
        ("jamba", "parallelism={pipeline: 2, layer_partition: [1, 3]}"),  # all attention is in the second
        ("gemma3", "parallelism={pipeline: 2, layer_partition: [2, 1]}"),
        ("mamba2", "parallelism.pipeline=2"),
    ],
)
def test_each_rank_swaps_its_blocks_and_states(name: str, ranks: str, spec_of: Callable[[str], Path]) -> None:
    few = ("scheduler.max_num_seqs=2", "scheduler.policy=priority")
    few += ("hardware.memory.kv_cache=auto",) if name == "mamba2" else ()  # it keeps states alone
    swapping = (*few, "hardware.memory.swap_space=1MiB", ranks)
    with engine_of(spec_of(name), *few) as one, engine_of(spec_of(name), *swapping) as two:
        assert answers(two, 1, has_urgent=True) == answers(one, 1, has_urgent=True)
        swap = two._loop._scheduler.stats(0.0).swap
        assert swap is not None
        assert swap.num_stored == swap.num_loaded > 0


def test_a_row_is_unloaded_if_one_rank_did_not_load_it() -> None:
    class Own:
        def move(self, stores: list[BlockMove], loads: list[BlockMove]) -> Moved:
            return Moved(num_loaded=len(loads), unloaded=frozenset({1}))

    class Others:
        def send(self, message: Move) -> None:
            self.asked = message

        def wait_moved(self) -> frozenset[int]:
            return frozenset({2})

    others, loads = Others(), [BlockMove(row, (row,), (row,)) for row in range(3)]
    moved = GroupSwap(cast("SwapMemory", Own()), others).move([], loads)
    assert others.asked == Move([], loads)
    assert (moved.num_loaded, moved.unloaded) == (3, {1, 2})


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU")
def test_threads_are_bound_to_the_cpus_of_their_rank(spec_of: Callable[[str], Path]) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    before = os.sched_getaffinity(0)
    bind = f"hardware.cpu_omp_threads_bind={first}|{second}"
    with engine_of(spec_of("llama"), bind, "parallelism.tensor=2") as engine:
        (rank,) = rank_processes()
        assert os.sched_getaffinity(0) == {first}
        assert os.sched_getaffinity(rank) == {second}
        assert answers(engine, 1)
    assert os.sched_getaffinity(0) == before
    both = (f"hardware.cpu_omp_threads_bind={first},{second}", "hardware.num_threads=2")
    known = set(os.listdir("/proc/self/task"))
    with engine_of(spec_of("llama"), *both):
        workers = [int(task) for task in set(os.listdir("/proc/self/task")) - known]
        assert {second} in [os.sched_getaffinity(worker) for worker in workers]
        assert os.sched_getaffinity(0) == {first, second}  # what it starts is not all on one CPU
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("appliance_version", "the plan is of version 0.0.0, and this rank is"),
        ("header_sha256", "is not the one that was"),
    ],
)
def test_a_rank_of_another_version_or_other_weights_is_refused(
    field: str, message: str, spec_of: Callable[[str], Path]
) -> None:
    plan = prepare(str(spec_of("llama")), ("parallelism.tensor=2",)).plan
    if field == "appliance_version":
        plan = msgspec.structs.replace(plan, appliance_version="0.0.0")
    else:
        plan = msgspec.structs.replace(plan, model=msgspec.structs.replace(plan.model, header_sha256="0" * 64))
    meeting, failed = InMemory(), threading.Event()
    process = RankProcess(
        meeting.load(plan, 1), meeting.start(plan, 1), failed.set, lambda rank, handed: None, LoadingTurns(None)
    )
    with pytest.raises(RankStartError, match=message):
        process.wait_loaded(lambda phase, done, total: None)
    assert failed.is_set()
    process.kill()
    meeting.close()


def test_shared_memory_that_cannot_grow_is_refused_in_words(spec_of: Callable[[str], Path]) -> None:
    code = f"""
import resource
from tests.engine.test_rank_group import engine_of
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
engine_of({str(spec_of("llama"))!r}, "parallelism.tensor=2")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "RankStartError: the memory that ranks share cannot be had: File too large" in ended.stderr
