"""vLLM's engine arguments as Python has them, `LLM(model, max_model_len=4096)`, as a spec."""

import dataclasses
import difflib
import json
import os
from collections.abc import Mapping
from typing import Any

from appliance.base.errors import ApplianceError, ExitCode
from appliance.importing.draft import Draft, deployment_name
from appliance.importing.vllm import known_names, place
from appliance.importing.vllm_fields import RENAMED, fields, python_value
from appliance.importing.words import Option
from appliance.spec.suggest import GONE

_HEAD = {"api_version": "appliance/v1", "kind": "Deployment"}


class EngineArgumentError(ApplianceError, ValueError):
    """An engine argument that the spec has no place for."""

    exit_code = ExitCode.INVALID


def document_of(model: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the spec that the arguments ask for, not checked yet. None of an argument is as if it were not there.

    Raises EngineArgumentError for an argument that is not known, or asks for what has no meaning here.
    """
    draft = Draft()
    draft.put("model.source", model, f"model={model!r}")
    for name, value in arguments.items():
        if value is not None:
            _place(draft, name, value)
    for left in draft.unplaced:
        raise EngineArgumentError(f"{left.origin}: {left.reason}", hint=_hint(left.origin.split()[0].partition("=")[0]))
    return {**_HEAD, "name": deployment_name(model), **draft.document}


def _place(draft: Draft, name: str, value: Any) -> None:
    origin = f"{name}={_shown(value)}"
    if name not in known_names():
        raise EngineArgumentError(f"there is no engine argument {name!r}", hint=_hint(name))
    if name == "enable_lora":  # a request may name any folder then
        if value:
            draft.put("lora.allow_runtime_updating", True, origin)
        return
    found = fields().get(RENAMED.get(name, name))
    if name == "hf_token" and isinstance(value, str):
        draft.put("loading.hf_token", value, f"{name}=***")
    elif found is not None and _is_plain(value):
        draft.put(found.path, python_value(name, found, value), origin)
    else:
        place(draft, Option(origin, name, _words(name, value)))


def _is_plain(value: Any) -> bool:
    """Returns whether a value is one of a field as it stands, or by its text: a path, or a type of torch."""
    is_named = isinstance(value, os.PathLike) or type(value).__module__ == "torch"
    return is_named or isinstance(value, str | bool | int | float | list | tuple | set | frozenset)


def _words(name: str, value: Any) -> tuple[str, ...]:
    """Returns a value as the words of a command line, which are JSON where they are no text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {key: each for key, each in dataclasses.asdict(value).items() if each is not None}
    values = value if isinstance(value, list | tuple) else [value]
    try:
        return tuple(each if isinstance(each, str) else json.dumps(each) for each in values)
    except TypeError as error:
        raise EngineArgumentError(f"{name} has to be plain data: {error}") from error


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _hint(name: str) -> str | None:
    if name in GONE:
        return GONE[name]
    near = difflib.get_close_matches(name, sorted(known_names()), n=1, cutoff=0.7)
    return f"did you mean {near[0]!r}?" if near and near[0] != name else None
