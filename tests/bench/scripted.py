"""An in-process engine whose model counts up."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.engine.inproc import InprocEngine
from tests.engine.plans import scripted_plan


@contextmanager
def scripted_engine() -> Iterator[InprocEngine]:
    with tempfile.TemporaryDirectory() as folder, InprocEngine.from_plan(scripted_plan(Path(folder))) as engine:
        yield engine
