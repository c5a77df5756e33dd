"""Modelfiles: FROM, PARAMETER, ADAPTER; templates and system texts have no equivalent."""

import re
from pathlib import Path
from typing import Any, Final

from appliance.importing.draft import CannotImportError, Draft, Imported, deployment_name
from appliance.importing.llama_server import number, place_max_new_tokens
from appliance.importing.sources import hub_address, names_repository

_INSTRUCTION: Final = re.compile(r"^[ \t]*([A-Za-z]+)[ \t]+(\"\"\".*?\"\"\"|[^\n]*)", re.MULTILINE | re.DOTALL)
_SAMPLING: Final = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
_FIELDS: Final = {"num_ctx": "model.max_model_len", "num_thread": "hardware.num_threads", "seed": "model.seed"}
_DEFAULTS_PATH: Final = "decoding.override_generation_config"
_FILE_SUFFIXES: Final = (".gguf", ".bin", ".safetensors")
_TEMPLATES: Final = "the spec has no equivalent; the checkpoint's own chat template is used"


def import_modelfile(text: str) -> Imported:
    """Raises CannotImportError when there is no FROM."""
    draft = Draft()
    given = ""
    for found in _INSTRUCTION.finditer(text):
        instruction, value = found[1].upper(), found[2].strip().removeprefix('"""').removesuffix('"""').strip()
        origin = f"{instruction} {value.splitlines()[0] if value else ''}".strip()
        if instruction == "FROM" and not given:
            given = value
            _place_source(draft, value, origin)
        else:
            _place(draft, instruction, value, origin)
    if not given:
        raise CannotImportError("the Modelfile has no FROM")
    return draft.finished(deployment_name(re.sub(r":[^/]*$", "", given)))


def _place_source(draft: Draft, value: str, origin: str) -> None:
    """A file, a folder, a repository of the hub, or a name of Ollama's library, which nobody but Ollama resolves."""
    source = hub_address(value)
    if source is not None:
        draft.put("model.source", source, origin)
        if names_repository(source):
            draft.notes.append(f"{origin}: Ollama takes Q4_K_M; where there are several files, write {source}:Q4_K_M")
    elif _is_path(value):
        draft.put("model.source", value, origin)
    else:
        draft.document.setdefault("model", {})["source"] = f"${{env:MODEL_SOURCE:?where {value} is, or its GGUF file}}"
        draft.leave(origin, f"a name of Ollama's library: `ollama show {value} --modelfile` names its file; "
                    "write that, or a repository of the hub, as model.source, or set MODEL_SOURCE")  # fmt: skip


def _is_path(value: str) -> bool:
    return value.startswith((".", "/", "~")) or value.endswith(_FILE_SUFFIXES) or Path(value).exists()


def _place(draft: Draft, instruction: str, value: str, origin: str) -> None:
    if instruction == "PARAMETER":
        name, _, given = value.partition(" ")
        _place_parameter(draft, name, number(given.strip()), origin)
    elif instruction == "ADAPTER":
        draft.add("lora.adapters", [{"name": deployment_name(value), "source": value}], origin)
    elif instruction == "FROM":
        draft.leave(origin, "a spec has one source: a split model's first file, and no projector of images")
    else:
        draft.leave(origin, _TEMPLATES)


def _place_parameter(draft: Draft, name: str, value: Any, origin: str) -> None:
    if name in _FIELDS:
        draft.put(_FIELDS[name], value, origin)
    elif name in _SAMPLING:
        draft.put_member(_DEFAULTS_PATH, _SAMPLING[name], value, origin)
    elif name == "num_predict":
        place_max_new_tokens(draft, value, origin)
    else:
        draft.leave(origin, "the spec has no such field; a request may say it")
