"""A group of ranks that runs one program: an Executable like any other to its runner.

This process is the leader, rank 0: it tells the others each step, runs its own share, and samples. The others decide
nothing, so no two ranks can want different things. Every wait has a deadline, and a rank that ends unasked ends every
wait.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import numpy as np

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.extension import Extension, load_extension
from appliance.engine.extension_messages import ExtensionAnswer, ExtensionCall
from appliance.engine.ranks.followers import Followers, RankFailedError
from appliance.engine.ranks.group_sleep import GroupSleeper
from appliance.engine.ranks.group_swap import GroupSwap
from appliance.engine.ranks.group_weights import GroupStaging
from appliance.engine.ranks.messages import (
    CallExtension,
    CaptureGraph,
    CopyBlocks,
    DropAdapter,
    Prefault,
    PutAdapter,
    RunArrays,
    RunStep,
    TimeOperators,
)
from appliance.engine.ranks.moving_experts import MovingExperts, moving_experts
from appliance.engine.ranks.share import Share
from appliance.engine.ranks.stage_share import StageShare
from appliance.engine.ranks.step_messages import message_of
from appliance.engine.sleep import Sleeper
from appliance.engine.swap_memory import Swap, SwapMemory
from appliance.engine.weight_staging import Staging
from appliance.kernels.errors import StepError
from appliance.kernels.interface import (
    Eager,
    Executable,
    FewLogits,
    Graphed,
    GraphReport,
    Keeping,
    Lazy,
    Profiled,
    Screened,
    StepInputs,
    WeightChange,
)
from appliance.kernels.linked_ranks import LinkedRanks
from appliance.kernels.lockstep import Lockstep
from appliance.kernels.logits import Logits
from appliance.kernels.ranks import RankError
from appliance.kernels.sampling import SampledBatch, SamplingBatch
from appliance.plan.types import EnginePlan
from appliance.program.work import OperatorWork


class RankGroup:
    """The whole group. It offers what the leader's own share offers."""

    def __init__(
        self,
        own: StageShare,
        followers: Followers,
        extension: Extension | None = None,
        experts: MovingExperts | None = None,
    ) -> None:
        self._share, self._own, self._followers, self.experts = own, own.executable, followers, experts
        self._extension = extension
        self._number = 0  # of the last step that was told
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
        self._followers.send(self._told(inputs))
        return self._ran(inputs, time.monotonic())

    @property
    def early_rows(self) -> int:
        return self._own.early_rows if isinstance(self._own, Eager) else 0

    def start(self, inputs: StepInputs) -> None:
        self.cancel()
        assert isinstance(self._own, Eager), "no rows begin early"
        self._followers.send(self._told(inputs))
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

    @property
    def few_logits(self) -> FewLogits | None:
        """Each rank screens its own tokens: the largest of all are among the largest of each."""
        return self._own.few_logits if isinstance(self._own, Screened) else None

    def sample(self, logits: Logits, batch: SamplingBatch) -> SampledBatch:
        self.cancel()
        return self._own.sample(logits, batch)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.cancel()
        self._own.copy_blocks(pairs)  # raises before the others are told
        self._followers.send(CopyBlocks([(int(source), int(target)) for source, target in pairs]))

    def prefault(self, block: int) -> None:
        if isinstance(self._own, Lazy):  # a set on torch has its whole cache from the start
            self._own.prefault(block)
            self._followers.send(Prefault(block))

    def capture_next(self) -> bool:
        if not isinstance(self._own, Graphed) or self._own.graphs.num_captured >= self._own.graphs.num_planned:
            return False
        self.cancel()
        self._followers.send(CaptureGraph())
        return self._own.capture_next()

    @property
    def graphs(self) -> GraphReport:
        return self._own.graphs if isinstance(self._own, Graphed) else GraphReport()

    def put_adapter(self, slot: int, changes: Mapping[str, WeightChange]) -> None:
        self._share.put_adapter(slot, changes)
        self._followers.send(PutAdapter.of(slot, changes))

    def drop_adapter(self, slot: int) -> None:
        self._share.drop_adapter(slot)
        self._followers.send(DropAdapter(slot))

    def swap(self, num_places: int, num_state_places: int) -> Swap:
        return GroupSwap(SwapMemory(self._own, num_places, num_state_places), self._followers)

    def sleeper(self, own: Callable[[Executable], Sleeper]) -> Sleeper:
        return GroupSleeper(own(self._own), self._followers)

    def staging(self, own: Callable[[Executable], Staging]) -> Staging:
        return GroupStaging(own(self._own), self._followers)

    def call_extensions(self, call: ExtensionCall) -> list[ExtensionAnswer]:
        """Calls a method of the operator's own on all ranks at once; returns their answers in order. Raises
        RankFailedError."""
        self.cancel()
        self._followers.send(CallExtension(call))
        assert self._extension is not None, "the plan names a class"
        return [self._extension.call(call), *self._followers.wait_called()]

    def kept(self) -> np.ndarray:
        assert isinstance(self._own, Keeping), "the program keeps rows"
        return self._own.kept()

    def time_operators(self, seconds: np.ndarray | None) -> None:
        assert isinstance(self._own, Profiled), "asked of a set that reports times"
        self._own.time_operators(seconds)
        if isinstance(self._followers.share.ranks, LinkedRanks):  # they pad steps as the leader does
            self._followers.send(TimeOperators(seconds is not None))

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
        load_own: Callable[[Share], StageShare],
        progress: Callable[[str, int, int], None],
        lockstep: Lockstep | None = None,
    ) -> Self:
        """Starts all ranks, which load side by side as far as the plan lets them. lockstep: the replicas with which
        they have the experts among them. Raises RankStartError, and what loading raises."""
        followers = Followers(plan, config, lockstep)
        try:
            with followers.turns.one():
                own = load_own(followers.share)
            extension = load_extension(plan, own.executable)
            followers.wait(progress)
        except BaseException:
            followers.kill()
            raise
        return cls(own, followers, extension, moving_experts(plan.parallel, own, followers.send))

    def _told(self, inputs: StepInputs) -> RunStep | RunArrays:
        """Returns the message of the next step. Raises RankFailedError if a rank ended."""
        if (reason := self._followers.reason()) is not None:
            raise RankFailedError(reason)
        if self.experts is not None:
            self.experts.before_step()
        self._number += 1
        steps = self._followers.share.steps
        return message_of(self._number, inputs) if steps is None else RunStep(self._number, steps.put(inputs))

    def _ran(self, inputs: StepInputs, since: float | None = None) -> Logits:
        """since: when the step was told; None if it began early."""
        try:
            logits = self._share.run(self._number, inputs)
        except StepError:
            self._refused()
            raise
        except RankError as error:
            raise self._lost(error) from error
        if self.experts is not None:
            self.experts.after_step(len(inputs.token_ids), None if since is None else time.monotonic() - since)
        return logits

    def _refused(self) -> None:
        """Waits until the others have refused a step too: the arrays of a later one may take the place of its own."""
        try:
            self._followers.share.ranks.meet()
        except RankError as error:
            raise self._lost(error) from error

    def _lost(self, error: RankError) -> RankFailedError:
        return RankFailedError(self._followers.find_reason() or f"the ranks cannot go on: {error}")
