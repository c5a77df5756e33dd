"""Where the plan of an engine comes from: vLLM's arguments, or a spec."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from appliance.checkpoint.sources.options import Progress
from appliance.importing.vllm_python import document_of
from appliance.plan.prepare import Prepared, prepare

_NAME = "LLM(...)"  # of the file that the arguments stand for, in diagnostics

Overrides = Mapping[str, Any] | Sequence[str]


class EngineArgs:
    """The arguments of an engine: the model, and vLLM's names for what a spec says."""

    def __init__(self, model: str, **arguments: Any) -> None:
        self.model = model
        self.arguments = arguments

    def prepare(self, progress: Progress | None = None) -> Prepared:
        """Plans the engine on this machine. Raises EngineArgumentError, and what `prepare` raises."""
        text = yaml.safe_dump(document_of(str(self.model), self.arguments), sort_keys=False)
        return prepare(Path.cwd() / _NAME, spec_text=text, progress=progress)


class AsyncEngineArgs(EngineArgs):
    """vLLM's name for the arguments of an AsyncLLM."""


def prepare_spec(path: str | Path, overrides: Overrides = (), progress: Progress | None = None) -> Prepared:
    """Plans what a spec says, as `appliance apply` does. overrides: `path=value` texts as of --set, or a mapping of
    paths or of sections. Raises what `prepare` raises."""
    return prepare(path, list(_texts(overrides)), progress=progress)


def _texts(overrides: Overrides) -> Iterator[str]:
    if not isinstance(overrides, Mapping):
        yield from overrides
        return
    for path, value in overrides.items():
        if isinstance(value, Mapping) and value:
            yield from (f"{path}.{each}" for each in _texts(value))
        else:
            yield f"{path}={json.dumps(value)}"
