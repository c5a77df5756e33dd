"""`loading.max_parallel_loading_workers`: at most so many ranks load at once, and the answers are the same."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.base.errors import SpecError
from appliance.engine import backend
from appliance.engine.inproc import InprocEngine
from appliance.engine.ranks.messages import FromRank, Loaded, Loading
from appliance.engine.ranks.rank_process import RankProcess
from appliance.engine.ranks.turns import LoadingTurns
from appliance.plan.prepare import prepare
from tests.engine.test_rank_group import TORCH, answers, engine_of, machine_with, pytestmark, spec_of

__all__ = ["pytestmark", "spec_of"]

FOUR = ("parallelism.tensor=2", "parallelism.pipeline=2")


class Watch:
    """Counts who loads, by what ranks say and when the leader's own loading begins and ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranks: set[int] = set()
        self.order: list[int] = []  # in which they ended
        self.most, self._lock = 0, threading.Lock()
        heard, load_share = RankProcess._hear, backend.load_share

        def hear(process: RankProcess, answer: FromRank) -> None:
            if isinstance(answer, Loading):
                self.begin(process.rank)
            elif isinstance(answer, Loaded):
                self.end(process.rank)  # before its turn is given on
            heard(process, answer)

        def load_own(*arguments: object) -> backend.Backend:
            self.begin(0)
            try:
                return load_share(*arguments)  # type: ignore[arg-type]  # as they came
            finally:
                self.end(0)

        monkeypatch.setattr(RankProcess, "_hear", hear)
        monkeypatch.setattr(backend, "load_share", load_own)

    def begin(self, rank: int) -> None:
        with self._lock:
            self.ranks.add(rank)
            self.most = max(self.most, len(self.ranks))

    def end(self, rank: int) -> None:
        with self._lock:
            self.ranks.discard(rank)
            self.order.append(rank)


@pytest.mark.parametrize("limit", [1, 2])
def test_at_most_so_many_load_at_once(
    limit: int, spec_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of("llama")
    with engine_of(spec) as engine:
        alone = answers(engine, 1)
    watch = Watch(monkeypatch)
    overrides = (*FOUR, f"loading.max_parallel_loading_workers={limit}")
    with InprocEngine.from_plan(prepare(str(spec), overrides, machine_with(4, tmp_path)).plan) as engine:
        assert sorted(watch.order) == [0, 1, 2, 3]
        assert 1 <= watch.most <= limit
        assert answers(engine, 1) == alone


def test_without_a_limit_nobody_waits() -> None:
    turns = LoadingTurns(None)
    assert all(turns.take() for _ in range(9))


def test_a_rank_that_is_not_wanted_any_more_waits_no_longer() -> None:
    turns = LoadingTurns(1)
    assert turns.take()
    ended = threading.Event()
    threading.Timer(0.05, ended.set).start()
    started = time.monotonic()
    assert not turns.take(ended.is_set)
    assert time.monotonic() - started < 5
    turns.give_back()
    assert turns.take()


def test_it_is_planned_and_refused_where_ranks_have_to_meet(spec_of: Callable[[str], Path], tmp_path: Path) -> None:
    spec, limit = str(spec_of("llama")), "loading.max_parallel_loading_workers=1"
    plan = prepare(spec, (limit, *FOUR), machine_with(4, tmp_path)).plan
    [said] = [each for each in plan.decisions if each.path == "loading.max_loading_ranks"]
    assert (plan.loading.max_loading_ranks, said.reason) == (1, "1 of 4 ranks load at once")
    with pytest.raises(SpecError, match="find one another while they load"):
        prepare(spec, (limit, TORCH, "parallelism.tensor=2"))
