"""A group of ranks that runs one program: an Executable like any other to its runner.

This process is the leader, rank 0: it tells the others each step, runs its own share, and samples. The others decide
nothing, so no two ranks can want different things. Every wait has a deadline, and a rank that ends unasked ends every
wait.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self, TypeVar

import numpy as np

from appliance.base.errors import ApplianceError
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.extension import Extension, load_extension
from appliance.engine.extension_messages import ExtensionAnswer, ExtensionCall
from appliance.engine.ranks.gathering import gathered
from appliance.engine.ranks.group_swap import GroupSwap
from appliance.engine.ranks.messages import (
    ENCODE,
    CallExtension,
    CaptureGraph,
    CopyBlocks,
    DropAdapter,
    HandedBack,
    HandedOn,
    Prefault,
    PutAdapter,
    RankCalled,
    RankMoved,
    RunArrays,
    RunStep,
    TimeOperators,
    ToRank,
)
from appliance.engine.ranks.moving_experts import MovingExperts, moving_experts
from appliance.engine.ranks.rank_process import RankProcess
from appliance.engine.ranks.share import Share
from appliance.engine.ranks.stage_links import LeaderLinks
from appliance.engine.ranks.stage_share import StageShare
from appliance.engine.ranks.step_messages import message_of
from appliance.engine.ranks.turns import LoadingTurns
from appliance.engine.swap_memory import Swap, SwapMemory
from appliance.kernels.errors import StepError
from appliance.kernels.interface import (
    Eager,
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
from appliance.kernels.logits import Logits
from appliance.kernels.ranks import RankError
from appliance.kernels.sampling import SampledBatch, SamplingBatch
from appliance.plan.types import EnginePlan
from appliance.program.work import OperatorWork

Answer = TypeVar("Answer", RankMoved, RankCalled)
_LOADING_SILENCE_S = 30.0  # of a rank that imports libraries, in which its other threads may stand still
_REASON_S = 1.0  # in which it is known how a process ended whose connection broke


class RankFailedError(ApplianceError):
    """A rank of the group ended, or is late: the engine ends, and is started again by the plan's rule."""


class Followers:
    """The other ranks, while they load and run."""

    def __init__(self, plan: EnginePlan, config: SchedulerConfig) -> None:
        """Starts them. Raises RankStartError if the system refuses memory, OSError if it refuses processes."""
        self._meeting, self.share = gathered(plan, config)
        self._num_beside = plan.parallel.tensor - 1
        self.turns = LoadingTurns(plan.loading.max_loading_ranks)
        self.links: LeaderLinks | None = None  # to later stages, of ranks that share no memory
        if isinstance(self.share.ranks, LinkedRanks) and plan.parallel.pipeline > 1:
            self.links = LeaderLinks(plan.parallel.pipeline, self._send_to_stage, self.share.ranks)
            self.share = self.share._replace(mail=self.links)
        self._when_failed: Callable[[str], None] = lambda reason: None
        self._is_over = threading.Event()
        self.processes: list[RankProcess] = []
        self.last_few_logits: FewLogits | None = None  # as the last rank says, which is in the last stage
        try:
            for rank in range(1, plan.parallel.num_ranks):
                handle = self._meeting.start(plan, rank)
                first = self._meeting.load(plan, rank)
                self.processes.append(RankProcess(first, handle, self._failed, self._handed, self.turns))
        except BaseException:
            self.kill()
            raise
        if isinstance(self.share.ranks, LinkedRanks):
            threading.Thread(target=self._look, args=(self.share.ranks,), name="ranks", daemon=True).start()

    def watch(self, when_lost: Callable[[str], None]) -> None:
        """Has a function called, from another thread, when a rank ends unasked."""
        self._when_failed = when_lost

    def wait(self, progress: Callable[[str, int, int], None]) -> None:
        """Waits until all can run steps. Raises RankStartError."""
        loaded = [process.wait_loaded(progress) for process in self.processes]
        self.last_few_logits = loaded[-1].few_logits

    def reason(self) -> str | None:
        """Why a rank ended, if one did so unasked: of several, one that blames no other."""
        ended = sorted((each.blames_other, each.rank, each.reason) for each in self.processes if each.reason)
        return ended[0][2] if ended else None

    def find_reason(self) -> str | None:
        """Returns why the ranks cannot go on, after a wait for them has failed: what one said, or which one is late. It
        may take a moment until that is known."""
        ranks = self.share.ranks
        if not isinstance(ranks, LinkedRanks):
            deadline = time.monotonic() + _REASON_S
            while any(each.is_leaving for each in self.processes) and time.monotonic() < deadline:
                time.sleep(_REASON_S / 100)
            return self.reason()
        interval_s = ranks.beat_interval_s
        deadline = time.monotonic() + 2 * interval_s
        while time.monotonic() < deadline:
            if any(each.reason and not each.blames_other for each in self.processes):
                return self.reason()
            time.sleep(interval_s / 20)
        now = time.monotonic()
        for each in self.processes:
            if each.num_waits < ranks.num_waits or each.silence_s(now) > 2 * interval_s:
                return late(each.rank, ranks.timeout_s)
        return self.reason()

    def wait_moved(self) -> frozenset[int]:
        """Waits until all have moved what they were told to; returns the rows that one of them did not load. Raises
        RankFailedError."""
        unloaded = set[int]()
        for moved in self._answers(RankMoved):
            unloaded.update(moved.unloaded)
        return frozenset(unloaded)

    def wait_called(self) -> list[ExtensionAnswer]:
        """Waits for what a method of the operator's own gave on each. Raises RankFailedError."""
        return [called.answer for called in self._answers(RankCalled)]

    def _answers(self, kind: type[Answer]) -> Iterator[Answer]:
        timeout_s = self.share.ranks.timeout_s
        for process in self.processes:
            answer = process.wait_answer(timeout_s)
            if answer is None:
                self.share.ranks.fail()
                raise RankFailedError(self.reason() or late(process.rank, timeout_s))
            assert isinstance(answer, kind), "a rank answers in the order in which it is asked"
            yield answer

    def send(self, message: ToRank) -> None:
        """Sends to all ranks but the leader."""
        self.send_beside(message)
        self.send_behind(message)

    def send_beside(self, message: ToRank) -> None:
        """Sends to the other ranks of the leader's stage."""
        encoded = ENCODE(message)
        for process in self.processes[: self._num_beside]:
            process.send(encoded)

    def send_behind(self, message: ToRank) -> None:
        """Sends to the ranks of later stages."""
        if self.links is not None:
            return self.links.tell(message)
        encoded = ENCODE(message)
        for process in self.processes[self._num_beside :]:
            process.send(encoded)
        return None

    def _send_to_stage(self, stage: int, encoded: bytes) -> None:
        tensor = self._num_beside + 1
        for process in self.processes[stage * tensor - 1 : (stage + 1) * tensor - 1]:
            process.send(encoded)

    def _handed(self, rank: int, handed: HandedOn | HandedBack) -> None:
        if self.links is not None:
            self.links.heard(rank // (self._num_beside + 1), handed)

    def end(self) -> None:
        has_failed = self.share.ranks.has_failed
        self._is_over.set()
        for process in self.processes:
            process.end(has_failed=has_failed)
        self._meeting.close()

    def kill(self) -> None:
        self._is_over.set()
        for process in self.processes:
            process.kill()
        self._meeting.close()

    def _failed(self) -> None:
        self.share.ranks.fail()
        if (reason := self.reason()) is not None:
            self._when_failed(reason)

    def _look(self, ranks: LinkedRanks) -> None:
        """Gives up a rank that does not show that it is there, or that it goes on."""
        while not self._is_over.wait(ranks.beat_interval_s):
            now = time.monotonic()
            for each in self.processes:
                patience_s = ranks.timeout_s if each.has_loaded else max(ranks.timeout_s, _LOADING_SILENCE_S)
                if each.reason is None and each.silence_s(now) > patience_s:
                    each.lost(late(each.rank, ranks.timeout_s))


def late(rank: int, timeout_s: float) -> str:
    return f"rank {rank} did not come within {timeout_s:g} s"


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
    ) -> Self:
        """Starts all ranks, which load side by side as far as the plan lets them. Raises RankStartError, and what
        loading raises."""
        followers = Followers(plan, config)
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
