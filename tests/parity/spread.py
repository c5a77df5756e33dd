"""Replicas as threads of one process, which have the experts of a model among them."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.reader import open_tensors
from appliance.engine.rounds import empty_step
from appliance.kernels.execution import Execution
from appliance.kernels.interface import Executable, KernelSet
from appliance.kernels.lockstep import Lockstep
from appliance.kernels.ranks import Ranks, SharedMemory
from appliance.loading.inventory import take_inventory
from appliance.loading.sharded_weights import share_of
from appliance.loading.weights import DecoderWeights
from appliance.models.describe import describe
from appliance.program.shard_layout import Shard
from tests.parity.harness import GROUPS, Driver, precision
from tests.parity.ranks import RankThreads

TIMEOUT_S = 20.0


def bind_replicas(
    facts: ModelFacts, kernel_set: KernelSet, count: int, execution: Execution, num_ranks: int = 1
) -> list[Executable]:
    """Binds a model as so many replicas do, each with its part of the experts, and each with so many ranks."""
    memory = SharedMemory()
    described = describe(facts, execution.limits.max_model_len)
    inventory = take_inventory(described, facts, precision(facts))
    compiled = described.stored_as({name: item.form for name, item in inventory.items()}).compiled

    def bind(own: Execution) -> Executable:
        with open_tensors(facts) as reader:
            whole = DecoderWeights(compiled, inventory, reader, execution.limits.max_model_len)
            share = share_of(compiled.program, None, whole, own)
            return kernel_set.bind(share.program, share.weights, own)

    def bind_replica(number: int) -> Executable:
        joins = [Lockstep(memory, number, count, TIMEOUT_S, shard=Shard(rank, num_ranks)) for rank in range(num_ranks)]
        if num_ranks == 1:
            return bind(replace(execution, lockstep=joins[0]))
        own = SharedMemory()
        groups = [Ranks(own, rank, num_ranks, TIMEOUT_S) for rank in range(num_ranks)]
        bound = [
            bind(replace(execution, lockstep=join, ranks=ranks)) for join, ranks in zip(joins, groups, strict=True)
        ]
        return RankThreads(bound, own)

    return [bind_replica(number) for number in range(count)]


class Rounds:
    """Runs a step of each replica at once; None: it has no rows."""

    def __init__(self, replicas: Sequence[Executable], bounds: Execution) -> None:
        self.drivers = [Driver(each, bounds) for each in replicas]
        self._threads = ThreadPoolExecutor(len(replicas))

    def run(self, steps: Sequence[Callable[[Driver], np.ndarray] | None]) -> list[np.ndarray | None]:
        running = [
            self._threads.submit(_nothing if step is None else step, driver)
            for driver, step in zip(self.drivers, steps, strict=True)
        ]
        return [each.result() for each in running]

    def close(self) -> None:
        self._threads.shutdown()
        for driver in self.drivers:
            driver.executable.close()


def _nothing(driver: Driver) -> None:
    states = "states" in driver.executable.memory_bytes
    driver.executable.run(empty_step(GROUPS, has_states=states))
