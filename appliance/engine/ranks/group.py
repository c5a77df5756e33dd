"""A group of ranks that runs one program: an Executable like any other to its runner.

This process is the leader, rank 0: it tells the others each step, runs its own share, and samples. The others decide
nothing, so no two ranks can want different things. Every wait has a deadline, and a rank that ends unasked ends every
wait.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import numpy as np

from appliance.base.errors import ApplianceError
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.ranks.messages import ENCODE, CopyBlocks, DropAdapter, Prefault, PutAdapter, RunStep, ToRank
from appliance.engine.ranks.rank_process import RankProcess
from appliance.engine.ranks.share import Parts, Share, own_changes
from appliance.kernels.errors import StepError
from appliance.kernels.interface import Adapters, Eager, Executable, Keeping, Lazy, Profiled, StepInputs, WeightChange
from appliance.kernels.logits import Logits
from appliance.kernels.ranks import RankError, SharedMemory
from appliance.kernels.sampling import SampledBatch, SamplingBatch
from appliance.plan.types import EnginePlan
from appliance.program.work import OperatorWork


class RankFailedError(ApplianceError):
    """A rank of the group ended, or is late: the engine ends, and is started again by the plan's rule."""


class Followers:
    """The other ranks, while they load and run."""

    def __init__(self, plan: EnginePlan, config: SchedulerConfig) -> None:
        """Starts them. Raises OSError if the system refuses processes or memory."""
        self._memory = SharedMemory()
        self.share = Share.of(plan, config, 0, self._memory)
        self._when_failed: Callable[[str], None] = lambda reason: None
        self.processes: list[RankProcess] = []
        try:
            for rank in range(1, plan.parallel.tensor):
                self.processes.append(RankProcess(plan, rank, self._memory, self._failed))
        except BaseException:
            self.kill()
            raise

    def watch(self, when_lost: Callable[[str], None]) -> None:
        """Has a function called, from another thread, when a rank ends unasked."""
        self._when_failed = when_lost

    def wait(self, progress: Callable[[str, int, int], None]) -> None:
        """Waits until all can run steps. Raises RankStartError."""

        for process in self.processes:
            process.wait_loaded(progress)

    def reason(self) -> str | None:
        """Why a rank ended, if one did so unasked."""
        return next((process.reason for process in self.processes if process.reason is not None), None)

    def send(self, message: ToRank) -> None:
        encoded = ENCODE(message)
        for process in self.processes:
            process.send(encoded)

    def end(self) -> None:
        has_failed = self.share.ranks.has_failed
        for process in self.processes:
            process.end(has_failed=has_failed)
        self._memory.close()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        self._memory.close()

    def _failed(self) -> None:
        self.share.ranks.fail()
        if (reason := self.reason()) is not None:
            self._when_failed(reason)


class RankGroup:
    """The whole group. It offers what the leader's own share offers, but for what finds few logits."""

    def __init__(self, own: Executable, parts: Parts, followers: Followers) -> None:
        self._own, self._parts, self._followers = own, parts, followers
        self._started: StepInputs | None = None
        self._started_revision = 0

    def watch(self, when_lost: Callable[[str], None]) -> None:
        self._followers.watch(when_lost)

    def run(self, inputs: StepInputs) -> Logits:
        started, self._started = self._started, None
        if started is not None and inputs.revision == self._started_revision:
            return self._ran(inputs)
        if started is not None:
            self._ran(started)  # the others run it to its end
        self._tell(inputs)
        return self._ran(inputs)

    @property
    def early_rows(self) -> int:
        return self._own.early_rows if isinstance(self._own, Eager) else 0

    def start(self, inputs: StepInputs) -> None:
        self.cancel()
        assert isinstance(self._own, Eager), "no rows begin early"
        self._tell(inputs)
        try:
            self._own.start(inputs)
        except StepError:
            self._refused()
            raise
        self._started, self._started_revision = inputs, inputs.revision

    def cancel(self) -> None:
        """Ends a started step by running it, as the other ranks do. What it wrote is written again by a later step."""
        started, self._started = self._started, None
        if started is not None:
            self._ran(started)

    def sample(self, logits: Logits, batch: SamplingBatch) -> SampledBatch:
        self.cancel()
        return self._own.sample(logits, batch)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.cancel()
        self._own.copy_blocks(pairs)  # raises before the others are told
        self._followers.send(CopyBlocks([(int(source), int(target)) for source, target in pairs]))

    def prefault(self, block: int) -> None:
        assert isinstance(self._own, Lazy), "asked of a set that is lazy"
        self._own.prefault(block)
        self._followers.send(Prefault(block))

    def put_adapter(self, slot: int, changes: Mapping[str, WeightChange]) -> None:
        assert isinstance(self._own, Adapters), "the plan has adapters"
        self._own.put_adapter(slot, own_changes(changes, self._parts))
        self._followers.send(PutAdapter.of(slot, changes))

    def drop_adapter(self, slot: int) -> None:
        assert isinstance(self._own, Adapters), "the plan has adapters"
        self._own.drop_adapter(slot)
        self._followers.send(DropAdapter(slot))

    def kept(self) -> np.ndarray:
        assert isinstance(self._own, Keeping), "the program keeps rows"
        return self._own.kept()

    def time_operators(self, seconds: np.ndarray | None) -> None:
        assert isinstance(self._own, Profiled), "asked of a set that reports times"
        self._own.time_operators(seconds)

    def operator_work(self) -> tuple[OperatorWork, ...]:
        assert isinstance(self._own, Profiled), "asked of a set that reports work"
        return self._own.operator_work()

    @property
    def shared_keys(self) -> int:
        return self._own.shared_keys if isinstance(self._own, Profiled) else 0

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        """What the leader allocated; the other ranks have as much, but for an uneven share."""
        return self._own.memory_bytes

    def close(self) -> None:
        with contextlib.suppress(RankFailedError):
            self.cancel()
        self._followers.end()
        self._own.close()

    @classmethod
    def load(
        cls,
        plan: EnginePlan,
        config: SchedulerConfig,
        load_own: Callable[[Share], tuple[Executable, Parts]],
        progress: Callable[[str, int, int], None],
    ) -> Self:
        """Starts all ranks, which load side by side. Raises RankStartError, and what loading raises."""
        followers = Followers(plan, config)
        try:
            own, parts = load_own(followers.share)
            followers.wait(progress)
        except BaseException:
            followers.kill()
            raise
        return cls(own, parts, followers)

    def _tell(self, inputs: StepInputs) -> None:
        if (reason := self._followers.reason()) is not None:
            raise RankFailedError(reason)
        self._followers.send(RunStep(self._followers.share.steps.put(inputs)))

    def _ran(self, inputs: StepInputs) -> Logits:
        try:
            return self._own.run(inputs)
        except StepError:
            self._refused()
            raise
        except RankError as error:
            raise self._lost(error) from error

    def _refused(self) -> None:
        """Waits until the others have refused a step too: the arrays of a later one may take the place of its own."""
        try:
            self._followers.share.ranks.meet()
        except RankError as error:
            raise self._lost(error) from error

    def _lost(self, error: RankError) -> RankFailedError:
        return RankFailedError(self._followers.reason() or f"the ranks cannot go on: {error}")
