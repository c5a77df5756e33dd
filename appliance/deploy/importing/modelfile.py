"""Modelfiles: FROM, PARAMETER, ADAPTER; templates and system texts have no equivalent."""

import re
from typing import Any, Final

import yaml

from appliance.deploy.importing.draft import CannotImportError, Draft, Imported, deployment_name

_INSTRUCTION: Final = re.compile(r"^\s*([A-Za-z]+)[ \t]+(\"\"\".*?\"\"\"|[^\n]*)", re.MULTILINE | re.DOTALL)
_SAMPLING: Final = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "num_predict": "max_new_tokens",
}
_FIELDS: Final = {"num_ctx": "model.max_model_len", "num_thread": "hardware.num_threads", "seed": "model.seed"}


def import_modelfile(text: str) -> Imported:
    """Raises CannotImportError when there is no FROM."""
    draft = Draft()
    for found in _INSTRUCTION.finditer(re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)):
        _place(draft, found[1].upper(), found[2].strip().removeprefix('"""').removesuffix('"""').strip())
    source = draft.document.get("model", {}).get("source")
    if source is None:
        raise CannotImportError("the Modelfile has no FROM")
    return draft.finished(deployment_name(source))


def _place(draft: Draft, instruction: str, value: str) -> None:
    origin = f"{instruction} {value.splitlines()[0] if value else ''}".strip()
    if instruction == "FROM":
        draft.put("model.source", value.replace("hf.co/", "hf://", 1) if value.startswith("hf.co/") else value, origin)
    elif instruction == "PARAMETER":
        name, _, given = value.partition(" ")
        _place_parameter(draft, name, given.strip(), origin)
    elif instruction == "ADAPTER":
        draft.add("lora.adapters", [{"name": deployment_name(value), "source": value}], origin)
    else:
        draft.leave(origin, "the spec has no equivalent; the checkpoint's own chat template is used")


def _place_parameter(draft: Draft, name: str, given: str, origin: str) -> None:
    value: Any = yaml.safe_load(given)
    if name in _FIELDS:
        draft.put(_FIELDS[name], value, origin)
    elif name in _SAMPLING:
        sampling = draft.document.get("decoding", {}).get("override_generation_config", {})
        draft.put("decoding.override_generation_config", {**sampling, _SAMPLING[name]: value}, origin)
    else:
        draft.leave(origin, "the spec has no such field; a request may say it")
