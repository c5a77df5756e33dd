"""Replicas that run their steps together: what they share in one life of all, and how that ends for all."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from appliance.kernels.lockstep import Lockstep
from appliance.kernels.ranks import SharedMemory
from appliance.program.shard_layout import Shard
from appliance.service.errors import GroupOverError


class _Life:
    """The memory and the event descriptors from a start of all replicas to the end of the first one."""

    def __init__(self, count: int) -> None:
        """Raises OSError if the system refuses memory or descriptors."""
        self.memory = SharedMemory()
        self.wakes = [os.eventfd(0, os.EFD_CLOEXEC) for _ in range(count)]
        self.joined: set[int] = set()
        self.is_over = False

    def close(self) -> None:
        self.memory.close()
        for descriptor in self.wakes:
            os.close(descriptor)


class StepGroup:
    """One failure domain: when a replica ends, the waits of the others end with its name, and all start anew."""

    def __init__(self, numbers: Sequence[int], when_over: Callable[[int, str], None], num_ranks: int = 1) -> None:
        """when_over: is called, for each other replica that runs, with why it cannot go on. num_ranks: of each."""
        self._numbers, self._when_over, self._leads = tuple(numbers), when_over, Shard(0, num_ranks)
        self._life: _Life | None = None
        self._given_up = ""

    def join(self, number: int) -> Sequence[int]:
        """Returns the descriptors that a replica is started with: of memory, and of each replica the one at which it is
        woken. Raises GroupOverError, and OSError if the system refuses them."""
        if self._given_up:
            raise GroupOverError(self._given_up)
        if self._life is None or self._life.is_over:
            self.close()
            self._life = _Life(len(self._numbers))
        assert number not in self._life.joined, "one that starts again has left"
        self._life.joined.add(number)
        return self._life.memory.descriptor, *self._life.wakes

    def left(self, number: int, reason: str) -> None:
        """A replica ended, or could not be started after it had joined."""
        life = self._life
        if life is None or life.is_over or number not in life.joined:
            return
        life.is_over = True
        place = self._numbers.index(number)
        Lockstep(life.memory, place, len(self._numbers), 0.0, life.wakes, shard=self._leads).fail()
        for other in life.joined - {number}:
            self._when_over(other, f"replica {number} is gone: {reason}")

    def give_up(self, number: int, reason: str) -> None:
        """A replica is not started again."""
        self._given_up = self._given_up or f"replica {number}, with which all run their steps, was given up: {reason}"
        self.left(number, reason)

    def close(self) -> None:
        """Our hold on what replicas share; they have theirs."""
        life, self._life = self._life, None
        if life is not None:
            with suppress(OSError):
                life.close()
