"""Where the ranks of a group find one another: memory that they share, or addresses for collectives."""

import contextlib
import functools
import os
import socket
from pathlib import Path
from typing import Protocol

from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.checkpoint.sampled_digest import sampled_sha256
from appliance.engine.ranks.door import Door, JoinedRank
from appliance.engine.ranks.handles import RankHandle, RankStartError, StartedRank
from appliance.engine.ranks.messages import Load
from appliance.kernels.linked_ranks import Rendezvous
from appliance.kernels.lockstep import Lockstep
from appliance.kernels.ranks import SharedMemory
from appliance.plan.types import EnginePlan


class Meeting(Protocol):
    """What the leader has of it."""

    def load(self, plan: EnginePlan, rank: int) -> Load:
        """Returns what another rank is told first."""

    def start(self, plan: EnginePlan, rank: int) -> RankHandle:
        """Starts another rank, or lets it join. Raises OSError if the system refuses a process."""

    def close(self) -> None: ...


class LinkedMeeting(Meeting, Protocol):
    """A meeting of ranks that share no memory."""

    rendezvous: Rendezvous


class InMemory:
    """Ranks that share memory."""

    def __init__(self, lockstep: Lockstep | None = None) -> None:
        """lockstep: of the replica whose ranks they are. Raises OSError if the system refuses memory."""
        self.memory = SharedMemory()
        self._lockstep = None if lockstep is None else (lockstep.ranks.memory.descriptor, lockstep.number)

    def load(self, plan: EnginePlan, rank: int) -> Load:
        return Load(plan, rank, memory=self.memory.descriptor, lockstep=self._lockstep)

    def start(self, plan: EnginePlan, rank: int) -> RankHandle:
        also = () if self._lockstep is None else self._lockstep[:1]
        return StartedRank((self.memory.descriptor, *also), plan.parallel.distributed_timeout_s)

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

    def start(self, plan: EnginePlan, rank: int) -> RankHandle:
        return StartedRank((self._file,), plan.parallel.distributed_timeout_s)

    def close(self) -> None:
        os.close(self._file)


class AtAddress:
    """Ranks of several machines. The first of them, as many as each machine has, are started here; the others join."""

    def __init__(self, plan: EnginePlan, token: str) -> None:
        """Raises RankStartError if the address of the plan cannot be had."""
        parallel = plan.parallel
        self._plan, self._num_here = plan, parallel.num_ranks // parallel.nnodes
        place = parallel.master_addr, parallel.master_port
        try:
            with contextlib.ExitStack() as opened:
                self._store = opened.enter_context(socket.create_server((parallel.master_addr, 0)))
                others = range(1, parallel.num_ranks)
                self._door = Door(place, token, others, lambda rank: self.load(plan, rank))
                opened.pop_all()
        except OSError as error:
            hint = "parallelism.master_addr is an address of this machine, and nothing else has master_port"
            where = ":".join(map(str, place))
            raise RankStartError(f"ranks cannot join at {where}: {error.strerror or error}", hint=hint) from error
        host, port = self._store.getsockname()[:2]
        self._address = (str(host), int(port))
        # torch closes the descriptor that it listens at, so it has one of its own.
        self.rendezvous = Rendezvous(self._address[0], address=self._address, listener=os.dup(self._store.fileno()))

    @property
    def door_address(self) -> tuple[str, int]:
        """Where ranks join."""
        return self._door.address

    def load(self, plan: EnginePlan, rank: int) -> Load:
        is_here = rank < self._num_here
        weights = None if is_here else self._weights_sha256
        return Load(plan, rank, store=self._address, host=self._address[0], weights_sha256=weights)

    def start(self, plan: EnginePlan, rank: int) -> RankHandle:
        parallel = plan.parallel
        if rank < self._num_here:
            return StartedRank((), parallel.distributed_timeout_s)
        return JoinedRank(self._door, rank, parallel.join_timeout_s, parallel.distributed_timeout_s)

    def close(self) -> None:
        self._door.close()
        self._store.close()

    @functools.cached_property
    def _weights_sha256(self) -> str:
        return sampled_sha256(Path(self._plan.model.path))


def links_ranks(plan: EnginePlan) -> bool:
    """Says whether the plan's ranks exchange columns as messages."""
    return KERNEL_SETS[plan.kernels.kernel_set].links_ranks
