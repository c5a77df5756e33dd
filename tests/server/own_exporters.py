"""Exporters of metrics as an operator would write them, with the faults that they may have."""

import time
from collections.abc import Sequence

from appliance.base.plugin_types import MetricSample

NO_EXPORTER = 3


class Raises:
    def __call__(self, samples: Sequence[MetricSample]) -> None:
        raise LookupError("no exporter")


class Needs:
    def __init__(self, something: int) -> None: ...

    def __call__(self, samples: Sequence[MetricSample]) -> None: ...


def hangs(samples: Sequence[MetricSample]) -> None:
    time.sleep(1e6)


async def late(samples: Sequence[MetricSample]) -> None: ...
