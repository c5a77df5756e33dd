"""llama-swap configuration files: one spec a model, from llama-server's flags."""

import re
from typing import Any, Final

import yaml

from appliance.deploy.importing.draft import CannotImportError, Draft, Imported, deployment_name, with_variables
from appliance.deploy.importing.words import Option, read_command, split_words

_ALIASES: Final = {
    "-m": "--model",
    "-c": "--ctx-size",
    "-np": "--parallel",
    "-t": "--threads",
    "-b": "--batch-size",
    "-a": "--alias",
    "-ctk": "--cache-type-k",
    "-ctv": "--cache-type-v",
    "-hf": "--hf-repo",
    "-hfr": "--hf-repo",
    "-fa": "--flash-attn",
    "-ngl": "--n-gpu-layers",
}
_SWITCHES: Final = frozenset({"jinja", "no_webui", "no_mmap", "mlock", "cont_batching", "embeddings", "metrics"})
_PATHS: Final = {
    "host": "endpoints.http.host",
    "threads": "hardware.num_threads",
    "parallel": "scheduler.max_num_seqs",
    "batch_size": "scheduler.max_num_batched_tokens",
    "chat_template_file": "model.chat_template",
    "seed": "model.seed",
}
_CACHE_TYPES: Final = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_MACRO: Final = re.compile(r"\$\{([A-Za-z_][\w-]*)\}")


def import_models(text: str) -> dict[str, Imported]:
    """Model name -> spec. Raises CannotImportError when the file is not llama-swap's."""
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CannotImportError(f"the file is not YAML: {error}") from error
    models = given.get("models") if isinstance(given, dict) else None
    if not isinstance(models, dict) or not models:
        raise CannotImportError("the file has no models", hint="llama-swap's configuration has a mapping `models`")
    macros = {str(name): str(value) for name, value in (given.get("macros") or {}).items()}
    return {str(name): _imported(str(name), model, macros) for name, model in models.items()}


def _imported(name: str, model: Any, macros: dict[str, str]) -> Imported:
    if not isinstance(model, dict) or not isinstance(model.get("cmd"), str):
        raise CannotImportError(f"the model {name} has no cmd")
    draft = Draft()
    command = _MACRO.sub(lambda found: macros.get(found[1], found[0]), model["cmd"])
    line = read_command(split_words(command), 1, _SWITCHES, _ALIASES)
    if not line.program or "llama-server" not in line.program[0]:
        raise CannotImportError(f"the model {name} does not run llama-server: {' '.join(line.program)}")
    for option in line.options:
        _place(draft, option)
    if "model" not in draft.document:
        raise CannotImportError(f"the model {name} names no file: -m, --model or -hf")
    draft.put("model.served_names", [name, *map(str, model.get("aliases") or [])], "the model's name and aliases")
    for key in sorted(set(model) - {"cmd", "aliases"}):
        draft.leave(f"{key}: {model[key]}", "swapping of models is not in the spec")
    return draft.finished(deployment_name(name))


def _place(draft: Draft, option: Option) -> None:
    value = with_variables(" ".join(option.words))
    if option.name == "model":
        draft.put("model.source", value, option.origin)
    elif option.name == "hf_repo":
        draft.put("model.source", f"hf://{value.partition(':')[0]}", option.origin)
        if ":" in value:
            draft.leave(option.origin, "name the file: hf://owner/name/FILE.gguf")
    elif option.name == "port":
        _put_port(draft, option, value)
    elif option.name == "ctx_size":
        draft.put("model.max_model_len", _number(value) or "auto", option.origin)
        draft.notes.append(
            f"{option.origin}: llama-server shares it among its slots; here it is the length of one sequence"
        )
    elif option.name in ("cache_type_k", "cache_type_v"):
        draft.put("cache.dtype", _CACHE_TYPES.get(value, value), option.origin)
    elif option.name in _PATHS:
        draft.put(_PATHS[option.name], _number(value), option.origin)
    else:
        draft.leave(option.origin, "the spec has no such field")


def _put_port(draft: Draft, option: Option, value: str) -> None:
    number = _number(value)
    if isinstance(number, int):
        draft.put("endpoints.http.port", number, option.origin)
    else:
        draft.notes.append(f"{option.origin}: llama-swap chose the port; this spec has the default")


def _number(text: str) -> Any:
    return int(text) if re.fullmatch(r"-?\d+", text) else text
