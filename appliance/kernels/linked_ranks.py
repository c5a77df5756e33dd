"""Ranks without common memory: they exchange columns by torch.distributed, and are on one machine or on several."""

import os
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of a group find one another when they begin.

    host: this rank's own address, at which the others connect to it. file: the descriptor of a file that all ranks of
    one machine have; None where address, of host and port, is a store that the leader keeps. listener: the leader's
    listening socket of that store.
    """

    host: str
    file: int | None = None
    address: tuple[str, int] | None = None
    listener: int | None = None

    @classmethod
    def of_one_machine(cls, descriptor: int | None = None) -> Self:
        """Returns that of ranks on this machine: in a file without a name, of which nothing is left behind. descriptor:
        the file, in another rank than the leader. Raises OSError if the system refuses it."""
        return cls("127.0.0.1", os.memfd_create("rendezvous", 0) if descriptor is None else descriptor)


class LinkedRanks:
    """One rank's view of the group. num_waits: how often it has waited for the others, which tells who is late. stage:
    of several groups that meet at one place, the number of this one."""

    def __init__(self, rendezvous: Rendezvous, rank: int, num_ranks: int, timeout_s: float, *, stage: int = 0) -> None:
        self.stage = stage
        self.rendezvous, self.rank, self.num_ranks, self.timeout_s = rendezvous, rank, num_ranks, timeout_s
        self.num_waits = 0
        self._has_failed = False

    def meet(self) -> None:
        """Does nothing: the arrays of a step are a message, which each rank has for itself."""

    def fail(self) -> None:
        """Notes it; a wait for a rank that is gone ends by itself."""
        self._has_failed = True

    @property
    def beat_interval_s(self) -> float:
        """How often a rank shows its leader that it is there."""
        return min(1.0, self.timeout_s / 4)

    @property
    def has_failed(self) -> bool:
        return self._has_failed
