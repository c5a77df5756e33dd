"""llama-server's flags."""

import re
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Final

from appliance.importing.draft import CannotImportError, Draft, deployment_name, with_variables
from appliance.importing.keys import place_keys
from appliance.importing.sources import hub_source
from appliance.importing.variables import place_token
from appliance.importing.words import Arity, Option, read_arguments

DEFAULT_PORT: Final = 8080
_ALIASES: Final = {
    "-m": "--model",
    "-c": "--ctx-size",
    "-n": "--n-predict",
    "-np": "--parallel",
    "-t": "--threads",
    "-b": "--batch-size",
    "-a": "--alias",
    "-s": "--seed",
    "-ctk": "--cache-type-k",
    "-ctv": "--cache-type-v",
    "-hf": "--hf-repo",
    "-hfr": "--hf-repo",
    "-hff": "--hf-file",
    "-hft": "--hf-token",
    "-fa": "--flash-attn",
    "-ngl": "--n-gpu-layers",
    "--gpu-layers": "--n-gpu-layers",
    "--predict": "--n-predict",
    "--temperature": "--temp",
    "--sampling-seed": "--seed",
    "-md": "--model-draft",
    "--spec-draft-model": "--model-draft",
    "-hfd": "--hf-repo-draft",
    "-hfrd": "--hf-repo-draft",
    "--draft": "--draft-max",
    "--draft-n": "--draft-max",
}
_SWITCHES: Final = frozenset({
    "jinja", "no_jinja", "no_webui", "webui", "no_mmap", "mmap", "mlock", "cont_batching", "cb", "no_cont_batching",
    "nocb", "embedding", "embeddings", "rerank", "reranking", "metrics", "props", "slots", "no_slots", "server",
    "verbose", "v", "swa_full", "no_kv_offload", "nkvo", "no_warmup", "warmup", "context_shift", "no_context_shift",
    "no_prefill_assistant", "offline", "log_disable", "log_timestamps", "log_prefix", "spm_infill", "ignore_eos",
    "special", "sp", "no_mmproj", "no_mmproj_offload", "kv_unified", "kvu", "no_kv_unified", "cpu_moe", "cmoe",
    "check_tensors", "no_host", "no_op_offload", "no_repack", "no_perf", "no_escape", "escape",
})  # fmt: skip
_PATHS: Final = {
    "host": "endpoints.http.host",
    "threads": "hardware.num_threads",
    "parallel": "scheduler.max_num_seqs",
    "batch_size": "scheduler.max_num_batched_tokens",
    "chat_template_file": "model.chat_template",
    "seed": "model.seed",
    "draft_max": "speculative.num_tokens",
}
_SAMPLING: Final = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
_DEFAULTS_PATH: Final = "decoding.override_generation_config"
_CACHE_TYPES: Final = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "q8_0": "int8"}
_UNBOUNDED: Final = (-1, -2)


def place_words(draft: Draft, words: list[str]) -> None:
    """From behind the program's name. Raises CannotImportError when no flag names a model."""
    found = read_arguments(words, _arity, _ALIASES)
    for word in found.positional:
        draft.leave(word, "a stray word")
    for option in found.options:
        if option.name != "hf_file":
            _place(draft, option)
    for option in found.options:
        if option.name == "hf_file":
            _place_file(draft, option)
    if draft.get("model.source") is None:
        raise CannotImportError("the command names no file: -m, --model or -hf")


def _arity(name: str) -> Arity:
    if name == "lora_scaled":
        return Arity.MANY
    return Arity.NONE if name in _SWITCHES else Arity.ONE


def _place(draft: Draft, option: Option) -> None:
    value = with_variables(" ".join(option.words))
    special = _SPECIAL.get(option.name)
    if special is not None:
        special(draft, option, value)
    elif option.name in _PATHS:
        draft.put(_PATHS[option.name], number(value), option.origin)
    elif option.name in _SAMPLING:
        draft.put_member(_DEFAULTS_PATH, _SAMPLING[option.name], number(value), option.origin)
    else:
        draft.leave(option.origin, "the spec has no such field")


def place_max_new_tokens(draft: Draft, value: Any, origin: str) -> None:
    """-1 (endless) and -2 (as far as the context reaches) bound nothing."""
    if value in _UNBOUNDED:
        draft.notes.append(f"{origin}: bounds nothing, as no bound does here")
    else:
        draft.put_member(_DEFAULTS_PATH, "max_new_tokens", value, origin)


def _place_file(draft: Draft, option: Option) -> None:
    """-hff names a file of -hf's repository."""
    source = draft.get("model.source") or ""
    if option.words and source.startswith("hf://"):
        repo = source.removeprefix("hf://").partition(":")[0]
        draft.put("model.source", f"hf://{repo}/{option.words[0]}", option.origin)
    else:
        draft.leave(option.origin, "a file of a repository, and -hf names none")


def _put_port(draft: Draft, option: Option, value: str) -> None:
    port = number(value)
    if isinstance(port, int):
        draft.put("endpoints.http.port", port, option.origin)
    else:
        draft.notes.append(f"{option.origin}: the port is chosen at the start; this spec has the default")


def _put_length(draft: Draft, option: Option, value: str) -> None:
    draft.put("model.max_model_len", number(value) or "auto", option.origin)  # 0 is the model's own
    if number(value) == 0:
        return
    shared = "llama-server shares it among its slots; here it is the length of one sequence"
    draft.notes.append(f"{option.origin}: {shared}")


def _put_names(draft: Draft, option: Option, value: str) -> None:
    draft.put("model.served_names", [name for name in value.split(",") if name], option.origin)


def _put_template(draft: Draft, option: Option, value: str) -> None:
    if "{" in value:
        draft.put("model.chat_template", " ".join(option.words), option.origin)
    else:
        draft.leave(option.origin, "a template that llama.cpp brings; the checkpoint's own is used")


def _put_adapters(draft: Draft, option: Option, value: str) -> None:
    """--lora FILE,... and --lora-scaled FILE:SCALE,... (older: FILE SCALE). There every request has them."""
    for part in value.replace(" ", ":").split(","):
        path, _, scale = part.rpartition(":") if option.name == "lora_scaled" else (part, "", "")
        if not path:
            draft.leave(option.origin, "an adapter and its scale, FILE:SCALE")
            continue
        adapter = {"name": deployment_name(PurePath(path).stem), "source": path}
        if scale:
            adapter["scale"] = number(scale)
        draft.add("lora.adapters", [adapter], option.origin)
        said = f"{option.origin}: requests name the adapter {adapter['name']!r}; the model alone has none"
        draft.notes.append(said)


def number(text: str) -> Any:
    """The number that a text is, else the text."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d*\.\d+|-?\d+\.\d*", text) else text


_SPECIAL: Final[dict[str, Callable[[Draft, Option, str], None]]] = {
    "model": lambda draft, option, value: draft.put("model.source", value, option.origin),
    "hf_repo": lambda draft, option, value: draft.put("model.source", hub_source(value), option.origin),
    "model_draft": lambda draft, option, value: draft.put("speculative.model", value, option.origin),
    "hf_repo_draft": lambda draft, option, value: draft.put("speculative.model", hub_source(value), option.origin),
    "hf_token": lambda draft, option, value: place_token(draft, " ".join(option.words), option.origin),
    "api_key": lambda draft, option, value: place_keys(draft, option.words, option.flag),
    "lora": _put_adapters,
    "lora_scaled": _put_adapters,
    "port": _put_port,
    "alias": _put_names,
    "chat_template": _put_template,
    "ctx_size": _put_length,
    "n_predict": lambda draft, option, value: place_max_new_tokens(draft, number(value), option.origin),
    "cache_type_k": lambda draft, option, value: draft.put(
        "cache.dtype", _CACHE_TYPES.get(value, value), option.origin
    ),
    "cache_type_v": lambda draft, option, value: draft.put(
        "cache.dtype", _CACHE_TYPES.get(value, value), option.origin
    ),
    "server": lambda draft, option, value: None,  # which program of an image that has several
}
