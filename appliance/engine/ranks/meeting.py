"""Where the ranks of a group find one another: memory that they share, or addresses for collectives."""

import os
from typing import Protocol

from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.engine.ranks.messages import Load
from appliance.kernels.linked_ranks import Rendezvous
from appliance.kernels.ranks import SharedMemory
from appliance.plan.types import EnginePlan


class Meeting(Protocol):
    """What the leader has of it."""

    def load(self, plan: EnginePlan, rank: int) -> Load:
        """Returns what another rank is told first."""

    @property
    def passed(self) -> tuple[int, ...]:
        """The descriptors that a rank of this machine gets."""

    def close(self) -> None: ...


class InMemory:
    """Ranks that share memory."""

    def __init__(self) -> None:
        """Raises OSError if the system refuses memory."""
        self.memory = SharedMemory()

    def load(self, plan: EnginePlan, rank: int) -> Load:
        return Load(plan, rank, memory=self.memory.descriptor)

    @property
    def passed(self) -> tuple[int, ...]:
        return (self.memory.descriptor,)

    def close(self) -> None:
        self.memory.close()


class InFile:
    """Ranks of one machine that exchange columns as messages."""

    def __init__(self) -> None:
        """Raises OSError if the system refuses a file."""
        self.rendezvous = Rendezvous.of_one_machine()
        assert self.rendezvous.file is not None, "it was made"
        self._file = self.rendezvous.file

    def load(self, plan: EnginePlan, rank: int) -> Load:
        return Load(plan, rank, file=self._file)

    @property
    def passed(self) -> tuple[int, ...]:
        return (self._file,)

    def close(self) -> None:
        os.close(self._file)


def links_ranks(plan: EnginePlan) -> bool:
    """Says whether the plan's ranks exchange columns as messages."""
    return KERNEL_SETS[plan.kernels.kernel_set].links_ranks
