"""The figures of an engine, in the classes of vLLM's `vllm.v1.metrics.reader`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.samples import Sample

POSITION: Final = "position"  # the label of a vector's places


@dataclass
class EngineFigure:
    """labels: of one figure among those of the name."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(EngineFigure):
    """value: a whole number, as in vLLM, but for what counts seconds."""

    value: int | float


@dataclass
class Vector(EngineFigure):
    """Counters by their place, such as the accepted tokens by their position in a draft."""

    values: list[int]


@dataclass
class Gauge(EngineFigure):
    value: float


@dataclass
class Histogram(EngineFigure):
    """buckets: how many values are no larger than each bound; the last bound is "+Inf"."""

    count: int
    sum: float
    buckets: dict[str, int]


def read_metrics(registry: CollectorRegistry) -> list[EngineFigure]:
    """Returns all figures, under the names that `/metrics` has, counters without `_total`."""
    return [metric for family in registry.collect() for metric in _read(family)]


def _read(family: Family) -> Iterator[EngineFigure]:
    if family.type == "gauge":
        for sample in _samples(family, ""):
            yield Gauge(family.name, sample.labels, sample.value)
    elif family.type == "histogram":
        yield from _histograms(family)
    else:
        counters = _samples(family, "_total")
        if any(POSITION in sample.labels for sample in counters):
            yield from _vectors(family.name, counters)
        else:
            yield from (Counter(family.name, sample.labels, _counted(sample.value)) for sample in counters)


def _counted(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _histograms(family: Family) -> Iterator[Histogram]:
    buckets: dict[frozenset[tuple[str, str]], dict[str, int]] = {}
    for sample in _samples(family, "_bucket"):
        labels, bound = _without(sample, "le")
        buckets.setdefault(labels, {})[bound] = int(sample.value)
    sums = {frozenset(sample.labels.items()): sample.value for sample in _samples(family, "_sum")}
    for labels, own in buckets.items():
        yield Histogram(family.name, dict(labels), own["+Inf"], sums[labels], own)


def _vectors(name: str, counters: Sequence[Sample]) -> Iterator[Vector]:
    found: dict[frozenset[tuple[str, str]], dict[int, int]] = {}
    for sample in counters:
        labels, position = _without(sample, POSITION)
        found.setdefault(labels, {})[int(position)] = int(sample.value)
    length = 1 + max(position for values in found.values() for position in values)
    for labels, values in found.items():
        yield Vector(name, dict(labels), [values.get(position, 0) for position in range(length)])


def _samples(family: Family, suffix: str) -> list[Sample]:
    return [sample for sample in family.samples if sample.name == family.name + suffix]


def _without(sample: Sample, label: str) -> tuple[frozenset[tuple[str, str]], str]:
    """Returns the other labels, and the value of this one."""
    others = frozenset((name, value) for name, value in sample.labels.items() if name != label)
    return others, sample.labels[label]
