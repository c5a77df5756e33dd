"""Gives figures to exporters of the operator's own, each in a thread of its own, so that none costs anybody else."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from queue import SimpleQueue
from typing import Final

from prometheus_client.registry import Collector

from appliance.base.log import fields, logger
from appliance.base.plugin_types import MetricSample, MetricsExporter
from appliance.base.plugins import PluginError, made_plugin
from appliance.plan.serving_types import ExportersPlan
from appliance.service.metrics import ServiceMetrics

FIELD: Final = "observability.metrics.exporters"

_log = logger("plugins")


class Exporters:
    """The exporters of one server. They are loaded at once; `run` calls them."""

    def __init__(self, plan: ExportersPlan) -> None:
        """Raises PluginError for one that cannot be imported, or is no function."""
        self._interval_s = plan.interval_s
        self._runs = [_ExporterThread(name, _loaded(name)) for name in plan.names]

    async def run(self, figures: Callable[[], Awaitable[Collector]]) -> None:
        """Exports the figures at every interval, until it is cancelled. An exporter that is busy still misses one."""
        while self._runs:
            await asyncio.sleep(self._interval_s)
            samples = samples_of(await figures())
            for each in self._runs:
                each.give(samples)


async def figures_of(metrics: ServiceMetrics) -> Collector:
    """Returns the figures of one process, for `Exporters.run`."""
    return metrics.collector


def samples_of(figures: Collector) -> tuple[MetricSample, ...]:
    """Returns all samples as they are now."""
    return tuple(
        MetricSample(sample.name, family.type, dict(sample.labels), sample.value)
        for family in figures.collect()
        for sample in family.samples
    )


def _loaded(name: str) -> MetricsExporter:
    made = made_plugin(name, FIELD)
    if not callable(made) or inspect.iscoroutinefunction(made):
        raise PluginError(f"{FIELD}: {name} is no function", hint="def export(samples), or a class of such objects")
    exporter: MetricsExporter = made
    return exporter


class _ExporterThread:
    """Calls one exporter. What it does not take in time is left out; the log says so once, until it works again."""

    def __init__(self, name: str, exporter: MetricsExporter) -> None:
        self._name = name
        self._export = exporter
        self._given: SimpleQueue[Sequence[MetricSample]] = SimpleQueue()
        self._is_busy = threading.Event()
        self._trouble = ""
        threading.Thread(target=self._run, name=f"exporter {name}", daemon=True).start()

    def give(self, samples: Sequence[MetricSample]) -> None:
        if self._is_busy.is_set():
            self._note("it is busy with figures of before")
            return
        self._is_busy.set()
        self._given.put(samples)

    def _run(self) -> None:
        while True:
            samples = self._given.get()
            try:
                self._export(samples)
                self._note("")
            except BaseException as error:  # noqa: BLE001 - whatever it was, it costs one line of the log
                self._note(f"{type(error).__name__}: {error}")
            self._is_busy.clear()

    def _note(self, trouble: str) -> None:
        if trouble and not self._trouble:
            _log.warning("a metrics exporter misses figures", extra=fields(plugin=self._name, reason=trouble))
        elif self._trouble and not trouble:
            _log.info("a metrics exporter works again", extra=fields(plugin=self._name))
        self._trouble = trouble
