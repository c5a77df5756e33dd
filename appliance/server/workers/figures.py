"""Figures of several processes as one: what a worker counted is added up, what is the engine's is the keeper's."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from appliance.server.workers.messages import Sample

_ADDED = ("counter", "histogram")
_SINCE = "_created"  # when a sample began; of several the first
Counts = dict[tuple[str, tuple[tuple[str, str], ...]], float]  # by a sample's name and labels


def samples_of(registry: Collector) -> list[Sample]:
    """Returns the samples that can be added up. Gauges are the keeper's."""
    return [
        Sample(sample.name, tuple(sample.labels.items()), sample.value)
        for family in registry.collect()
        if family.type in _ADDED
        for sample in family.samples
    ]


def add(total: Counts, samples: Iterable[Sample]) -> None:
    for sample in samples:
        key = (sample.name, sample.labels)
        before = total.get(key)
        if before is None:
            total[key] = sample.value
        else:
            total[key] = min(before, sample.value) if sample.name.endswith(_SINCE) else before + sample.value


class SummedCollector(Collector):
    """The keeper's own figures, with the workers' added."""

    def __init__(self, own: Collector, workers: Counts) -> None:
        self._own = own
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        for family in self._own.collect():
            if family.type in _ADDED:
                yield _with(family, self._workers)
            else:
                yield family


def summed(own: Collector, workers: Counts) -> CollectorRegistry:
    """Returns a registry of the keeper's own figures with the workers' added."""
    registry = CollectorRegistry()
    registry.register(SummedCollector(own, workers))
    return registry


def _with(family: Metric, workers: Counts) -> Metric:
    names = _sample_names(family)
    counts = {key: value for key, value in workers.items() if key[0] in names}
    add(counts, (Sample(sample.name, tuple(sample.labels.items()), sample.value) for sample in family.samples))
    total = Metric(family.name, family.documentation, family.type)
    for (name, labels), value in counts.items():
        total.add_sample(name, dict(labels), value)
    return total


def _sample_names(family: Metric) -> set[str]:
    endings = ("_total",) if family.type == "counter" else ("_bucket", "_count", "_sum")
    return {family.name + ending for ending in (*endings, _SINCE)}
