"""`vllm serve` command lines and vLLM's YAML configuration files."""

import json
import re
from collections.abc import Callable
from typing import Any, Final

import yaml

from appliance.importing.draft import CannotImportError, Draft, with_variables
from appliance.importing.keys import place_keys
from appliance.importing.sources import hub_source
from appliance.importing.variables import place_token
from appliance.importing.vllm_fields import RENAMED, SHORT, arity, field_value, fields, members
from appliance.importing.vllm_profiler import place_profiler
from appliance.importing.vllm_without import VALUES_WITHOUT, WITHOUT
from appliance.importing.words import Arguments, Option, read_arguments

DEFAULT_PORT: Final = 8000
ReadFile = Callable[[str], str | None]  # the text of a file of this machine; None where there is none
_QUANTIZED: Final = re.compile(r"^[\w.-]+/[\w.-]+:[A-Za-z0-9][\w.-]*$")


def place_words(draft: Draft, words: list[str], read_file: ReadFile) -> None:
    """Places the options of a command line (without the program). Raises CannotImportError if it names no model."""
    found = read_arguments(words, arity, SHORT)
    options = [option for option in found.options if option.name != "config"]
    for option in found.options:
        if option.name == "config":
            options = [*_of_file(draft, option, read_file), *options]  # the command line has the last word
    place_arguments(draft, Arguments(found.positional, options))


def read_config(text: str) -> list[Option]:
    """From a YAML file of `--config`: argument names, with dashes or underscores. Raises CannotImportError."""
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CannotImportError(f"the file is not YAML: {error}") from error
    if not isinstance(given, dict) or not all(isinstance(key, str) for key in given):
        raise CannotImportError("the file is not a mapping of vLLM's arguments")
    return [Option(f"{key}:", key.replace("-", "_"), _words(value)) for key, value in given.items()]


def _of_file(draft: Draft, option: Option, read_file: ReadFile) -> list[Option]:
    text = read_file(option.words[0]) if option.words else None
    if text is None:
        draft.leave(option.origin, "the file cannot be read here; what it says is missing")
        return []
    draft.notes.append(f"{option.origin}: what the file says is in this spec")
    return read_config(text)


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(item if isinstance(item, str) else json.dumps(item) for item in value)
    return (value if isinstance(value, str) else json.dumps(value),)


def place_arguments(draft: Draft, found: Arguments) -> None:
    """Everything but the address. Raises CannotImportError when no argument names a model."""
    model = _model(draft, found)
    draft.put("model.source", hub_source(model) if _QUANTIZED.match(model) else with_variables(model), model)
    for option in found.options:
        place(draft, option)


def _model(draft: Draft, found: Arguments) -> str:
    """The first word without a flag, else --model's, else the last word of a flag that nobody knows."""
    for word in found.positional[1:]:
        draft.leave(word, "a second model or a stray word")
    if found.positional:
        return found.positional[0]
    named = [word for option in found.options if option.name == "model" for word in option.words]
    if named:
        return named[-1]
    for index, option in reversed(list(enumerate(found.options))):
        if option.words and not _is_known(option.name):
            *others, model = option.words
            found.options[index] = Option(option.flag, option.name, tuple(others))
            draft.notes.append(f"{option.flag} is not known; the word after it, {model}, is taken as the model")
            return model
    raise CannotImportError("the command line names no model", hint="vllm serve MODEL ...")


def _is_known(name: str) -> bool:
    name = name.partition(".")[0]
    return name in known_names() or name.removeprefix("no_") in fields()


def known_names() -> frozenset[str]:
    """Returns the names of vLLM's arguments that are placed, or left with a reason."""
    return frozenset(_SPECIAL) | frozenset(WITHOUT) | frozenset(RENAMED) | frozenset(fields())


def place(draft: Draft, option: Option) -> None:
    """Places one argument, or leaves it with the reason."""
    name, _, member = option.name.partition(".")
    name = RENAMED.get(name, name)
    special = _SPECIAL.get(name)
    if special is not None:
        special(draft, option, member)
        return
    why = WITHOUT[name].reason if name in WITHOUT else VALUES_WITHOUT.get((name, " ".join(option.words)))
    if why is not None:
        draft.leave(option.origin, why)
        return
    positive = name.removeprefix("no_")
    found = fields().get(name) or fields().get(positive)
    if found is None or member:
        draft.leave(option.origin, "the spec has no such field")
        return
    words = ("false",) if name != positive and name not in fields() else option.words
    draft.put(found.path, field_value(positive if name not in fields() else name, found, words), option.origin)


def _ignore(draft: Draft, option: Option, member: str) -> None:
    """`--model`, read before; `--enable-lora`, said by the lora section."""
    if option.name == "enable_lora":
        draft.document.setdefault("lora", {})
        draft.origins["lora"] = option.origin


def _always(reason: str) -> "Callable[[Draft, Option, str], None]":
    def note(draft: Draft, option: Option, member: str) -> None:
        draft.notes.append(f"{option.origin}: {reason}")

    return note


def _keys(draft: Draft, option: Option, member: str) -> None:
    place_keys(draft, option.words, option.flag)


def _token(draft: Draft, option: Option, member: str) -> None:
    place_token(draft, option.words[0] if option.words else None, option.origin)


def _adapters(draft: Draft, option: Option, member: str) -> None:
    for word in option.words:
        try:
            given = json.loads(word)
        except ValueError:
            name, _, path = word.partition("=")
            given = {"name": name, "path": path}
        known = {"name": "name", "path": "source", "base_model_name": "base_model_name"}
        adapter = {known[key]: with_variables(str(value)) for key, value in given.items() if key in known and value}
        draft.add("lora.adapters", [adapter], option.origin)
        for key in sorted(set(given) - set(known)):
            draft.leave(f"{option.flag} {key}", "the spec has no such field of an adapter")


def _renderers(draft: Draft, option: Option, member: str) -> None:
    """One is vLLM's default, which libraries write out."""
    if option.words != ("1",):
        draft.leave(option.origin, "texts become tokens in the threads of the server's processes, as many as it needs")


def _cache_type(draft: Draft, option: Option, member: str) -> None:
    """Scales are a token and head here, whatever the type."""
    value = " ".join(option.words)
    draft.put("cache.dtype", value.removesuffix("_per_token_head"), option.origin)


def _object(section: str) -> "Callable[[Draft, Option, str], None]":
    """An argument that is a JSON object, or one dotted member of it: its members are fields of `section`."""

    def place(draft: Draft, option: Option, member: str) -> None:
        given = _as_object(option, member)
        if given is None:
            draft.leave(option.origin, "not a JSON object")
            return
        for key, value in given.items():
            found = members(section).get(key)
            if found is None:
                draft.leave(f"{option.flag} {key}", f"the spec's {section} has no such field")
            else:
                shown = value if isinstance(value, str) else json.dumps(value)
                draft.put(found.path, field_value(key, found, (shown,)), f"{option.flag} {key}={shown}")

    return place


def _as_object(option: Option, member: str) -> dict[str, Any] | None:
    text = " ".join(option.words)
    if member:
        return {member: yaml.safe_load(text) if text else True}
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    if isinstance(given, int) and not isinstance(given, bool):
        return {"level": given}  # -O 3
    return given if isinstance(given, dict) else None


def _profiler(draft: Draft, option: Option, member: str) -> None:
    given = _as_object(option, member)
    if given is None:
        draft.leave(option.origin, "not a JSON object")
        return
    place_profiler(draft, option.flag.partition("=")[0], given, is_whole=not member)


def _mapping(path: str) -> "Callable[[Draft, Option, str], None]":
    """An argument that is a free JSON object: each member has its own place, so that one of them can be refused."""

    def place(draft: Draft, option: Option, member: str) -> None:
        given = _as_object(option, member)
        if given is None:
            draft.leave(option.origin, "not a JSON object")
            return
        for key, value in given.items():
            shown = value if isinstance(value, str) else json.dumps(value)
            draft.put_member(path, str(key), value, f"{option.flag} {key}={shown}")

    return place


_SPECIAL: Final[dict[str, Callable[[Draft, Option, str], None]]] = {
    "model": _ignore,
    "enable_lora": _ignore,
    "enable_reasoning": _always("reasoning is split wherever decoding.reasoning_parser names a parser"),
    "disable_log_requests": _always("requests are not logged unless observability.logs.enable_log_requests says so"),
    "use_v2_block_manager": _always("there is one block manager"),
    "calculate_kv_scales": _always(
        "each token and head of an 8-bit cache has a scale of its own, found as it is written"
    ),
    "kv_cache_dtype": _cache_type,
    "renderer_num_workers": _renderers,
    "api_key": _keys,
    "hf_token": _token,
    "lora_modules": _adapters,
    "speculative_config": _object("speculative"),
    "speculative_model": lambda draft, option, member: draft.put("speculative.model", option.words[0], option.origin),
    "num_speculative_tokens": lambda draft, option, member: draft.put(
        "speculative.num_tokens", yaml.safe_load(option.words[0]), option.origin
    ),
    "compilation_config": _object("compilation"),
    "structured_outputs_config": _object("decoding"),
    "kv_transfer_config": _object("kv_transfer"),
    "kv_events_config": _object("kv_events"),
    "profiler_config": _profiler,
    "hf_overrides": _mapping("model.hf_overrides"),
    "rope_scaling": _mapping("model.rope_scaling"),
    "override_generation_config": _mapping("decoding.override_generation_config"),
    "limit_mm_per_prompt": _mapping("multimodal.limit_mm_per_prompt"),
    "mm_processor_kwargs": _mapping("multimodal.mm_processor_kwargs"),
    "media_io_kwargs": _mapping("multimodal.media_io_kwargs"),
    "model_loader_extra_config": _mapping("loading.model_loader_extra_config"),
}
