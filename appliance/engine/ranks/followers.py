"""The other ranks of a group as its leader sees them: started, told, asked, watched and ended together."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from appliance.base.errors import ApplianceError
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.extension_messages import ExtensionAnswer
from appliance.engine.ranks.gathering import gathered
from appliance.engine.ranks.messages import (
    ENCODE,
    HandedBack,
    HandedOn,
    RankCalled,
    RankDone,
    RankMoved,
    RankStaged,
    ToRank,
)
from appliance.engine.ranks.rank_process import RankProcess
from appliance.engine.ranks.stage_links import LeaderLinks
from appliance.engine.ranks.turns import LoadingTurns
from appliance.kernels.interface import FewLogits
from appliance.kernels.linked_ranks import LinkedRanks
from appliance.kernels.lockstep import Lockstep
from appliance.plan.types import EnginePlan

Answer = TypeVar("Answer", RankMoved, RankCalled, RankDone)
_LOADING_SILENCE_S = 30.0  # of a rank that imports libraries, in which its other threads may stand still
_REASON_S = 1.0  # in which it is known how a process ended whose connection broke


class RankFailedError(ApplianceError):
    """A rank of the group ended, or is late: the engine ends, and is started again by the plan's rule."""


class Followers:
    """The other ranks, while they load and run."""

    def __init__(self, plan: EnginePlan, config: SchedulerConfig, lockstep: Lockstep | None = None) -> None:
        """Starts them. lockstep: the replicas with which they have the experts among them. Raises RankStartError if the
        system refuses memory, OSError if it refuses processes."""
        self._meeting, self.share = gathered(plan, config, lockstep)
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

    def wait_staged(self) -> list[tuple[int, RankStaged]]:
        """Waits until all have read new weights; returns what each says, with its number. Raises RankFailedError."""
        told = [(process.rank, process.wait_staged()) for process in self.processes]
        found = [(rank, staged) for rank, staged in told if staged is not None]
        if len(found) < len(told):
            raise RankFailedError(self.reason() or "the group ends")
        return found

    def wait_done(self) -> str | None:
        """Waits until all have done what they were told, as long as they go on, as reading weights may take longer than
        any step. Returns why one could not, with its number. Raises RankFailedError."""
        slept = [
            (process.rank, answer.error) for process, answer in zip(self.processes, self._patiently(), strict=True)
        ]
        return next((f"rank {rank}: {error}" for rank, error in slept if error is not None), None)

    def _patiently(self) -> list[RankDone]:
        for process in self.processes:
            process.is_given_time = True
        try:
            return list(self._answers(RankDone, math.inf))
        finally:
            for process in self.processes:
                process.is_given_time = False

    def _answers(self, kind: type[Answer], timeout_s: float | None = None) -> Iterator[Answer]:
        timeout_s = self.share.ranks.timeout_s if timeout_s is None else timeout_s
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
        if self.share.lockstep is not None:
            self.share.lockstep.fail()  # the leader may wait for it there, as the other replicas do
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
