"""Experts of a group of ranks that move between steps: the leader decides, and all ranks do it before the same step."""

import time
from collections.abc import Callable

import numpy as np

from appliance.base.log import fields, logger
from appliance.engine.expert_messages import ExpertStats
from appliance.engine.ranks.messages import MoveExperts
from appliance.engine.ranks.stage_share import StageShare
from appliance.kernels.interface import MovesExperts
from appliance.loading.moved_experts import MovedExperts
from appliance.plan.parallel_types import ParallelPlan
from appliance.program.balancer import BalanceSettings, ExpertBalancer

_log = logger("engine")


def moving_experts(plan: ParallelPlan, own: StageShare, send: Callable[[MoveExperts], None]) -> "MovingExperts | None":
    """Returns the leader's part; None if experts stay where they are."""
    if own.experts is None:
        return None
    assert isinstance(own.executable, MovesExperts), "it has experts that move"
    settings = BalanceSettings(plan.eplb_window_size, plan.eplb_step_interval, plan.eplb_log_balancedness)
    return MovingExperts(own.experts, own.executable, settings, plan.tensor, send)


class MovingExperts:
    """The leader's part. own: its places; tables: how often experts were chosen. send: to the other ranks."""

    def __init__(
        self,
        own: MovedExperts,
        executable: MovesExperts,
        settings: BalanceSettings,
        num_ranks: int,
        send: Callable[[MoveExperts], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own, self._settings, self._send, self._clock = own, settings, send, clock
        self._tables = [executable.expert_tables[each] for each in sorted(executable.expert_tables)]
        self._balancer = ExpertBalancer(settings, [table.placed for table in self._tables], num_ranks)
        self._num_moved, self._seconds, self._was_off = 0, 0.0, False

    def before_step(self) -> None:
        """Places one mixture anew where that is due, on all ranks. No step runs. Raises like MovedExperts.move."""
        move = self._balancer.next_move()
        if move is None:
            return
        started = self._clock()
        former = self._tables[move.mixture].placed
        self._send(MoveExperts(move.mixture, list(move.placed)))
        self._own.move(move.mixture, move.placed)
        self._num_moved += sum(one != other for one, other in zip(former, move.placed, strict=True))
        self._seconds += self._clock() - started

    def after_step(self, num_rows: int, seconds: float | None) -> None:
        """Takes what a step did. seconds: None if it began early, so that they are not its own."""
        self._balancer.note(np.stack([table.loads for table in self._tables]), num_rows, seconds)
        if self._settings.logs_each_step:
            _log.info("loads of experts", extra=fields(balancedness=round(self._balancer.balancedness(), 4)))
        if self._balancer.is_off and not self._was_off:
            self._was_off = True
            _log.warning("experts stay where they are: moving them made steps no faster")

    @property
    def stats(self) -> ExpertStats:
        report = self._balancer.report()
        return ExpertStats(
            num_moved=self._num_moved,
            num_rearranged=report.num_rearranged,
            balancedness=round(report.balancedness, 4),
            seconds=round(self._seconds, 6),
            speed_up=round(report.speed_up, 3),
            is_off=report.is_off,
        )
