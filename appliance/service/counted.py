"""A histogram whose buckets were counted elsewhere: prometheus_client's own takes single values only."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class CountedHistogram(Collector):
    """The same histogram under several names. It keeps what an engine had counted before it was started again."""

    def __init__(self, names: Sequence[str], text: str, model_name: str, bounds: Sequence[float]) -> None:
        self._names = tuple(names)
        self._text = text
        self._model_name = model_name
        self._bounds = [*(str(bound) for bound in bounds), "+Inf"]
        self._counts = self._before = [0] * len(self._bounds)
        self._total = self._total_before = 0

    def note(self, counts: Sequence[int], total: int) -> None:
        """`counts` one a bound and one above all, and the sum of all values, since the engine's start."""
        if counts:
            self._counts = [old + new for old, new in zip(self._before, counts, strict=True)]
            self._total = self._total_before + total

    def restart(self) -> None:
        """The engine counts from zero now."""
        self._before, self._total_before = self._counts, self._total

    def collect(self) -> Iterator[HistogramMetricFamily]:
        below, buckets = 0, []
        for bound, count in zip(self._bounds, self._counts, strict=True):
            below += count
            buckets.append((bound, below))
        for name in self._names:
            family = HistogramMetricFamily(name, self._text, labels=("model_name",))
            family.add_metric((self._model_name,), buckets, self._total)
            yield family
