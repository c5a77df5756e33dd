"""Writes traces of engines into the folder that the plan names."""

import gzip
import os
import time
from collections.abc import Sequence
from pathlib import Path

import orjson

from appliance.engine.chrome_trace import chrome_trace
from appliance.engine.step_trace import StepTrace


def write_trace(folder: Path, deployment: str, traces: Sequence[StepTrace]) -> str:
    """Writes a file that only its owner may read, whole or not at all; returns its name. Raises OSError."""
    name = f"{deployment}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}.trace.json.gz"
    document = orjson.dumps(chrome_trace(deployment, traces))
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{name}.part"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(gzip.compress(document, compresslevel=5))
    part.replace(folder / name)
    return name
