"""A histogram whose buckets were counted elsewhere: prometheus_client's own takes single values only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


@dataclass(slots=True)
class _Counts:
    """The counts of one engine. before: those of its former lives."""

    counts: list[int]
    before: list[int]
    total: int = 0
    total_before: int = 0


class CountedHistogram(Collector):
    """The same histogram under several names, by engine. It keeps what an engine had counted before it was started
    again."""

    def __init__(self, names: Sequence[str], text: str, model_name: str, bounds: Sequence[float]) -> None:
        self._names = tuple(names)
        self._text = text
        self._model_name = model_name
        self._bounds = [*(str(bound) for bound in bounds), "+Inf"]
        self._engines: dict[str, _Counts] = {}

    def show(self, engine: str) -> None:
        """Exports zeros until the engine has counted."""
        self._of(engine)

    def note(self, engine: str, counts: Sequence[int], total: int) -> None:
        """`counts` one a bound and one above all, and the sum of all values, since the engine's start."""
        if counts:
            of = self._of(engine)
            of.counts = [old + new for old, new in zip(of.before, counts, strict=True)]
            of.total = of.total_before + total

    def restart(self, engine: str) -> None:
        """The engine counts from zero now."""
        of = self._of(engine)
        of.before, of.total_before = of.counts, of.total

    def collect(self) -> Iterator[HistogramMetricFamily]:
        for name in self._names:
            family = HistogramMetricFamily(name, self._text, labels=("model_name", "engine"))
            for engine, of in self._engines.items():
                below, buckets = 0, []
                for bound, count in zip(self._bounds, of.counts, strict=True):
                    below += count
                    buckets.append((bound, below))
                family.add_metric((self._model_name, engine), buckets, of.total)
            yield family

    def _of(self, engine: str) -> _Counts:
        zeros = [0] * len(self._bounds)
        return self._engines.setdefault(engine, _Counts(zeros, zeros))
