"""A rank's share of the memory of its group."""

from collections.abc import Mapping
from typing import NamedTuple

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.ranks.step_memory import StepMemory, step_bytes
from appliance.kernels.interface import WeightChange
from appliance.kernels.ranks import Ranks, SharedMemory
from appliance.plan.types import EnginePlan

Parts = Mapping[str, tuple[int, int]]  # the rows of logical weights that a rank has, where it has some only


def own_changes(changes: Mapping[str, WeightChange], parts: Parts) -> dict[str, WeightChange]:
    """Returns what an adapter changes of a rank's rows."""
    return {name: change.of_rows(*parts[name]) if name in parts else change for name, change in changes.items()}


class Share(NamedTuple):
    """ranks: for the kernel set. steps: the arrays of steps."""

    ranks: Ranks
    steps: StepMemory

    @classmethod
    def of(cls, plan: EnginePlan, config: SchedulerConfig, rank: int, memory: SharedMemory | int) -> "Share":
        """memory: that of the group, or its descriptor. Raises OSError if the system refuses it."""
        memory = SharedMemory(memory) if isinstance(memory, int) else memory
        size, parallel = step_bytes(config), plan.parallel
        ranks = Ranks(memory, rank, parallel.tensor, parallel.distributed_timeout_s, size)
        return cls(ranks, StepMemory(memory, size))
