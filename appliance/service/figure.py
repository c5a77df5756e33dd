"""One metric of a registry, under all of its names."""

from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from appliance.service.metric import Kind, Metric

Instrument = Counter | Gauge | Histogram
_MAKERS: dict[Kind, type[Instrument]] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}


class Figure:
    """Label values are those of `Metric.label_names`, in their order."""

    def __init__(self, metric: Metric, model_name: str, registry: CollectorRegistry) -> None:
        self._model_name = model_name
        self._families = [_make(metric, name, registry) for name in names_of(metric)]
        self._cells: dict[tuple[str, ...], list[Instrument]] = {}
        if not metric.label_names:
            self.show()

    def show(self, *labels: str) -> None:
        """Exports the figure from now on, also while it is 0."""
        self._at(labels)

    def set(self, value: float, *labels: str) -> None:
        for cell in self._at(labels):
            assert isinstance(cell, Gauge)
            cell.set(value)

    def add(self, amount: float, *labels: str) -> None:
        for cell in self._at(labels):
            assert isinstance(cell, Counter)
            cell.inc(amount)

    def observe(self, value: float, *labels: str) -> None:
        for cell in self._at(labels):
            assert isinstance(cell, Histogram)
            cell.observe(value)

    def clear(self, *first: str) -> None:
        """Forgets the cells whose label values begin with these."""
        self._forget([labels for labels in self._cells if labels[: len(first)] == first])

    def keep_only(self, place: int, values: Collection[str]) -> None:
        """Forgets the cells whose label at this place has another value."""
        self._forget([labels for labels in self._cells if labels[place] not in values])

    def _forget(self, found: Collection[tuple[str, ...]]) -> None:
        for labels in found:
            del self._cells[labels]
            for family in self._families:
                family.remove(self._model_name, *labels)

    def _at(self, labels: tuple[str, ...]) -> list[Instrument]:
        cells = self._cells.get(labels)
        if cells is None:
            cells = self._cells[labels] = [family.labels(self._model_name, *labels) for family in self._families]
        return cells


def names_of(metric: Metric) -> list[str]:
    """Returns the names under which a metric is exported."""
    return [f"appliance_{metric.name}", *metric.vllm_names]


def _make(metric: Metric, name: str, registry: CollectorRegistry) -> Instrument:
    labels = ("model_name", *metric.label_names)
    if metric.kind == "histogram":
        return Histogram(name, metric.help, labels, buckets=metric.buckets, registry=registry)
    return _MAKERS[metric.kind](name, metric.help, labels, registry=registry)
