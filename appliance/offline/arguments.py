"""Where the plan of an engine comes from: vLLM's arguments, or a spec."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from appliance.checkpoint.sources.options import Progress
from appliance.importing.vllm import known_names
from appliance.importing.vllm_parser import add_arguments
from appliance.importing.vllm_python import EngineArgumentError, document_of
from appliance.plan.prepare import Prepared, prepare

_NAME = "LLM(...)"  # of the file that the arguments stand for, in diagnostics

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
Overrides = Mapping[str, Any] | Sequence[str]


class EngineArgs:
    """The arguments of an engine: the model, and vLLM's names for what a spec says."""

    def __init__(self, model: str | None = None, **arguments: Any) -> None:
        """Raises EngineArgumentError where there is no model; other arguments are checked when they are planned."""
        if not model:
            raise EngineArgumentError("no model is named", hint="a path, or a repository of the hub: LLM('model')")
        self.model = model
        self.__dict__.update(arguments)

    @property
    def arguments(self) -> dict[str, Any]:
        """All but the model: `LLM(**vars(engine_args))` is how programs of vLLM write it."""
        return {name: value for name, value in vars(self).items() if name != "model"}

    @classmethod
    def add_cli_args(cls, parser: Parser) -> Parser:
        """Adds the arguments to a parser of a program's own, and returns it. Those that are not given are None."""
        add_arguments(parser)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Takes the engine's arguments from what such a parser has read; a program's own are left."""
        known = known_names()
        return cls(**{name: value for name, value in vars(args).items() if name in known})

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
