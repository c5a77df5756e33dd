"""Ranks as threads of one process: each binds its shard of a program, and a step runs in all of them."""

from collections.abc import Callable, Mapping, Sequence
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
from appliance.kernels.stage_inputs import StageInputs
from appliance.loading.inventory import take_inventory
from appliance.loading.sharded_weights import share_of
from appliance.loading.weights import DecoderWeights
from appliance.models.describe import describe
from appliance.plan.types import PrecisionPlan
from appliance.program.stages import Stage
from tests.models.tiny import VOCAB_SIZE
from tests.parity.harness import Driver, precision

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}  # torch's products round by the width of the matrix


class RankThreads:
    """An executable that is one rank of a group whose others run beside it."""

    def __init__(self, ranks: Sequence[Executable], memory: SharedMemory) -> None:
        self._ranks, self._memory = ranks, memory
        self._threads = ThreadPoolExecutor(len(ranks))
        self.sees: StageInputs | None = None

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


class StagesInTurn:
    """An executable whose stages run one after the other."""

    def __init__(self, stages: Sequence[Executable], sees: Sequence[StageInputs]) -> None:
        self._stages, self._sees = stages, sees

    def run(self, inputs: StepInputs) -> Logits:
        given: np.ndarray | None = None
        for number, (stage, sees) in enumerate(zip(self._stages, self._sees, strict=True)):
            logits = stage.run(sees.of(inputs, given))
            if number < len(self._stages) - 1:
                given = stage.kept().copy()
        return logits

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        return {name: size for stage in self._stages for name, size in stage.memory_bytes.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stages[-1], name)

    def close(self) -> None:
        for stage in self._stages:
            stage.close()


def bind_stages(
    facts: ModelFacts, kernel_set: KernelSet, layers: tuple[int, ...], num_ranks: int, execution: Execution
) -> StagesInTurn:
    """Binds the stages of a model, each of which so many ranks run."""
    bound = [
        bind_ranks(facts, kernel_set, num_ranks, replace(execution, stage=Stage(number, layers)))
        for number in range(len(layers))
    ]
    sees = [each.sees for each in bound]
    return StagesInTurn(bound, [each for each in sees if each is not None])


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
    sees: list[StageInputs | None] = []

    meeting = Rendezvous.of_one_machine() if KERNEL_SETS[kernel_set.name].uses_torch else None

    def bind(rank: int) -> Executable:
        group: RankView = Ranks(memory, rank, num_ranks, timeout_s=20.0)
        if meeting is not None:
            group = LinkedRanks(meeting, rank, num_ranks, timeout_s=20.0)
        own = replace(execution, ranks=group)
        with open_tensors(facts) as reader:
            whole = DecoderWeights(compiled, inventory, reader, execution.limits.max_model_len)
            share = share_of(compiled.program, None, whole, own)
            sees.append(share.stage)
            return kernel_set.bind(share.program, share.weights, own)

    ranks = RankThreads([bind(rank) for rank in range(num_ranks)], memory)
    ranks.sees = sees[0]
    return ranks


def check_equal(kernel_set: KernelSet, found: np.ndarray, wanted: np.ndarray) -> None:
    if kernel_set.name == "reference" or KERNEL_SETS[kernel_set.name].uses_torch:
        np.testing.assert_allclose(found, wanted, **TOLERANCE)
    else:
        np.testing.assert_array_equal(found, wanted)


def check_alike(one: Driver, several: Driver, check: Callable[[np.ndarray, np.ndarray], None]) -> None:
    """Runs a whole prompt, and then two sequences in uneven pieces and together, on both, and checks what is found
    against what is wanted. Closes both."""
    prompt = [int(token) for token in np.random.default_rng(5).integers(3, VOCAB_SIZE, 33)]
    check(several.all_logits(prompt), one.all_logits(prompt))
    rows = [(driver.sequence(prompt[:7]), driver.sequence(prompt[9:21])) for driver in (one, several)]
    for lengths in ((7, 5), (1, 7), (1, 1)):
        for row in rows:
            for sequence in row:
                sequence.token_ids += [5, 6]
        wanted, found = (
            driver.step(list(zip(row, lengths, strict=True))) for driver, row in zip((one, several), rows, strict=True)
        )
        check(found, wanted)
    several.executable.close()
    one.executable.close()
