"""Ranks as threads of one process: each binds its shard of a program, and a step runs in all of them."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.reader import open_tensors
from appliance.kernels.execution import Execution
from appliance.kernels.interface import Executable, KernelSet, StepInputs
from appliance.kernels.linked_ranks import LinkedRanks, Rendezvous
from appliance.kernels.logits import Logits
from appliance.kernels.ranks import Ranks, RankView, SharedMemory
from appliance.layers.program import CompiledDecoder
from appliance.loading.inventory import take_inventory
from appliance.loading.sharded_weights import ShardedWeights
from appliance.loading.weights import DecoderWeights
from appliance.models.describe import describe
from appliance.plan.types import PrecisionPlan
from appliance.program.shard_layout import Shard
from appliance.program.sharding import shard_program
from tests.parity.harness import precision


class RankThreads:
    """An executable that is one rank of a group whose others run beside it."""

    def __init__(self, ranks: Sequence[Executable], memory: SharedMemory) -> None:
        self._ranks, self._memory = ranks, memory
        self._threads = ThreadPoolExecutor(len(ranks))

    def _all(self, call: Callable[[Executable], Any]) -> list[Any]:
        return [each.result() for each in [self._threads.submit(call, rank) for rank in self._ranks]]

    def run(self, inputs: StepInputs) -> Logits:
        # Each rank sees inputs of its own, as processes do.
        ran = self._all(lambda rank: rank.run(replace(inputs)))
        logits: Logits = ran[0]
        for at in range(logits.num_rows):
            assert all(np.array_equal(logits.row(at), each.row(at)) for each in ran), "all ranks have all logits"
        return logits

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._all(lambda rank: rank.copy_blocks(pairs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ranks[0], name)

    def close(self) -> None:
        self._all(lambda rank: rank.close())
        self._threads.shutdown()
        self._memory.close()


def bind_ranks(
    facts: ModelFacts,
    kernel_set: KernelSet,
    num_ranks: int,
    execution: Execution,
    plan: PrecisionPlan | None = None,
) -> RankThreads:
    memory = SharedMemory()
    described = describe(facts, execution.limits.max_model_len)
    inventory = take_inventory(described, facts, plan or precision(facts))
    compiled = described.stored_as({name: item.form for name, item in inventory.items()}).compiled

    meeting = Rendezvous.of_one_machine() if KERNEL_SETS[kernel_set.name].uses_torch else None

    def bind(rank: int) -> Executable:
        group: RankView = Ranks(memory, rank, num_ranks, timeout_s=20.0)
        if meeting is not None:
            group = LinkedRanks(meeting, rank, num_ranks, timeout_s=20.0)
        return _bind_one(facts, kernel_set, compiled, inventory, replace(execution, ranks=group))

    return RankThreads([bind(rank) for rank in range(num_ranks)], memory)


def _bind_one(
    facts: ModelFacts, kernel_set: KernelSet, compiled: CompiledDecoder, inventory: Any, execution: Execution
) -> Executable:
    assert execution.ranks is not None
    sharded = shard_program(compiled.program, Shard(execution.ranks.rank, execution.ranks.num_ranks))
    with open_tensors(facts) as reader:
        whole = DecoderWeights(compiled, inventory, reader, execution.limits.max_model_len)
        return kernel_set.bind(sharded.program, ShardedWeights(whole, sharded), execution)
