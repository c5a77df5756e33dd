"""A rank's share of the memory of its group, or its end of the links between them."""

from collections.abc import Mapping
from typing import NamedTuple, Self

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.ranks.messages import Load
from appliance.engine.ranks.step_memory import StepMemory, step_bytes
from appliance.kernels.interface import WeightChange
from appliance.kernels.linked_ranks import LinkedRanks, Rendezvous
from appliance.kernels.ranks import Ranks, RankView, SharedMemory
from appliance.plan.types import EnginePlan

Parts = Mapping[str, tuple[int, int]]  # the rows of logical weights that a rank has, where it has some only


def own_changes(changes: Mapping[str, WeightChange], parts: Parts) -> dict[str, WeightChange]:
    """Returns what an adapter changes of a rank's rows."""
    return {name: change.of_rows(*parts[name]) if name in parts else change for name, change in changes.items()}


class Share(NamedTuple):
    """ranks: for the kernel set. steps: the arrays of steps; None where they come as messages."""

    ranks: RankView
    steps: StepMemory | None

    @classmethod
    def of(cls, plan: EnginePlan, config: SchedulerConfig, rank: int, memory: SharedMemory | int) -> Self:
        """memory: that of the group, or its descriptor. Raises OSError if the system refuses it."""
        memory = SharedMemory(memory) if isinstance(memory, int) else memory
        size, parallel = step_bytes(config), plan.parallel
        ranks = Ranks(memory, rank, parallel.tensor, parallel.distributed_timeout_s, size)
        return cls(ranks, StepMemory(memory, size))

    @classmethod
    def linked(cls, plan: EnginePlan, rank: int, rendezvous: Rendezvous) -> Self:
        """Returns that of a rank that shares no memory."""
        parallel = plan.parallel
        return cls(LinkedRanks(rendezvous, rank, parallel.tensor, parallel.distributed_timeout_s), None)

    @classmethod
    def told(cls, first: Load, config: SchedulerConfig, host: str = "127.0.0.1") -> Self:
        """Returns that of a rank that was told what to load. host: its own address for the others. Raises OSError like
        `of`."""
        if first.memory is not None:
            return cls.of(first.plan, config, first.rank, first.memory)
        if first.file is not None:
            return cls.linked(first.plan, first.rank, Rendezvous.of_one_machine(first.file))
        return cls.linked(first.plan, first.rank, Rendezvous(host, address=first.store))
