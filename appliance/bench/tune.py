"""Searches the scheduler's fields with short benchmarks: one field at a time, up and down from the best so far."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from appliance.bench.record import RoundFigures, missed_targets
from appliance.plan.types import EnginePlan

GAIN = 0.03  # less more is noise
LADDERS: dict[str, tuple[int, ...]] = {
    "scheduler.max_num_seqs": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    "scheduler.max_num_batched_tokens": (64, 128, 256, 512, 1024, 2048, 4096, 8192),
    "scheduler.max_num_partial_prefills": (1, 2, 4, 8),
}

Settings = Mapping[str, int]  # by path of the spec
Planner = Callable[[Settings], EnginePlan | None]  # None: it cannot be planned
Measure = Callable[[EnginePlan], RoundFigures]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One setting that was measured. `missed` are the declared targets that it misses, in words."""

    settings: dict[str, int]
    output_throughput: float
    goodput: float | None
    ttft_p95: float | None
    itl_p95: float | None
    missed: list[str]

    @property
    def score(self) -> tuple[float, float]:
        """Fewer missed targets first, then what is useful of the work: goodput where there are targets."""
        return -len(self.missed), self.output_throughput if self.goodput is None or not self.missed else self.goodput


@dataclass(frozen=True, slots=True)
class Tuned:
    """`trials` in their order; the first is the spec as it was. `is_complete`: there was time for every neighbour."""

    best: Trial
    trials: tuple[Trial, ...]
    is_complete: bool


def tune(
    planner: Planner,
    measure: Measure,
    clock: Callable[[], float],
    budget_s: float,
    tell: Callable[[Trial], None] = lambda trial: None,
) -> Tuned:
    """The best setting found within `budget_s`. A trial is begun only where one of the longest so far would still fit.

    Each field goes up its ladder, then down, as long as it gains more than GAIN; the fields are gone through until none
    gains. Raises ValueError when the spec itself cannot be planned.
    """
    search = _Search(planner, measure, clock, clock() + budget_s, tell)
    if search.try_(search.start()) is None:
        raise ValueError("the spec as it is cannot be measured")
    improved = True
    while improved and not search.is_over:
        improved = any(search.climb(path) for path in LADDERS)
    return Tuned(search.best, tuple(search.trials.values()), not search.is_over)


class _Search:
    def __init__(
        self,
        planner: Planner,
        measure: Measure,
        clock: Callable[[], float],
        deadline: float,
        tell: Callable[[Trial], None],
    ) -> None:
        self.trials: dict[tuple[tuple[str, int], ...], Trial] = {}
        self.is_over = False
        self._planner = planner
        self._measure = measure
        self._clock = clock
        self._deadline = deadline
        self._tell = tell
        self._longest_s = 0.0

    @property
    def best(self) -> Trial:
        """The first of the best, so that nothing is changed for nothing."""
        found = next(iter(self.trials.values()))
        for trial in self.trials.values():
            if _is_better(trial, found):
                found = trial
        return found

    def start(self) -> dict[str, int]:
        plan = self._planner({})
        if plan is None:
            return {}
        return {path: int(getattr(plan.scheduler, path.partition(".")[2])) for path in LADDERS}

    def climb(self, path: str) -> bool:
        """Returns whether another value of this field was better."""
        before = self.best
        for steps in _directions(path, before.settings[path]):
            for value in steps:
                tried = self.try_({**self.best.settings, path: value})
                if tried is None or tried is not self.best:
                    break
            if self.best is not before:
                break  # up was better, so down was before
        return self.best is not before

    def try_(self, settings: dict[str, int]) -> Trial | None:
        """Measures a candidate; None when it cannot be planned, or no time is left for it."""
        key = tuple(sorted(settings.items()))
        if key in self.trials:
            return self.trials[key]
        began = self._clock()
        if self.trials and began + self._longest_s > self._deadline:
            self.is_over = True
            return None
        plan = self._planner(settings)
        if plan is None:
            return None
        figures = self._measure(plan)
        self._longest_s = max(self._longest_s, self._clock() - began)
        trial = self.trials[key] = _trial(settings, figures, plan.slo)
        self._tell(trial)
        return trial


def _directions(path: str, value: int) -> Iterator[list[int]]:
    yield [step for step in LADDERS[path] if step > value]
    yield [step for step in reversed(LADDERS[path]) if step < value]


def _is_better(trial: Trial, other: Trial) -> bool:
    (missed, value), (other_missed, other_value) = trial.score, other.score
    return missed > other_missed or (missed == other_missed and value > other_value * (1 + GAIN))


def _trial(settings: dict[str, int], figures: RoundFigures, slo: Mapping[str, float]) -> Trial:
    ttft, itl = figures.latencies.get("ttft"), figures.latencies.get("itl")
    return Trial(
        settings=settings,
        output_throughput=figures.output_throughput,
        goodput=figures.goodput,
        ttft_p95=None if ttft is None else ttft.p95,
        itl_p95=None if itl is None else itl.p95,
        missed=missed_targets([figures], slo),
    )
