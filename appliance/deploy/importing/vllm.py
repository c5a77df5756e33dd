"""`vllm serve` command lines and vLLM's YAML configuration files."""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, Final

import yaml

from appliance.deploy.importing.draft import CannotImportError, Draft, Imported, deployment_name, with_variables
from appliance.deploy.importing.vllm_fields import RENAMED, SHORT, field_value, fields, members, switches
from appliance.deploy.importing.words import CommandLine, Option, read_command, split_words

_PROGRAMS: Final = (
    re.compile(r"^vllm serve\b"),
    re.compile(r"^python[\d.]* -m vllm\.entrypoints\.(openai\.)?api_server\b"),
)
_NUM_WORDS: Final = (2, 3)
_PUBLIC: Final = ("0.0.0.0", "::")


def import_command(text: str) -> Imported:
    """From a command line. Raises CannotImportError when it is not vLLM's, or names no model."""
    words = split_words(text.strip().removeprefix("$ "))
    start = next((index for index, word in enumerate(words) if word == "vllm" or word.startswith("python")), None)
    if start is None:
        raise CannotImportError("this is no vLLM command line", hint="it begins: vllm serve MODEL, after variables")
    joined = " ".join(words[start:])
    program = next((size for form, size in zip(_PROGRAMS, _NUM_WORDS, strict=True) if form.match(joined)), None)
    if program is None:
        raise CannotImportError(f"only `vllm serve` can be imported, not: {joined[:60]}")
    found = read_command(words[start:], program, switches(), SHORT)
    found.environment |= dict(word.split("=", 1) for word in words[:start] if re.match(r"^[A-Za-z_]\w*=", word))
    return _imported(found)


def import_config(text: str) -> Imported:
    """From a YAML file of `--config`: argument names, with dashes or underscores, and values."""
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CannotImportError(f"the file is not YAML: {error}") from error
    if not isinstance(given, dict) or not all(isinstance(key, str) for key in given):
        raise CannotImportError("the file is not a mapping of vLLM's arguments")
    options = [Option(f"{key}:", key.replace("-", "_"), _words(value)) for key, value in given.items()]
    return _imported(CommandLine(options=options))


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(item if isinstance(item, str) else json.dumps(item) for item in value)
    return (value if isinstance(value, str) else json.dumps(value),)


def _imported(line: CommandLine) -> Imported:
    draft = Draft()
    model = (
        line.positional[:1] or [word for option in line.options if option.name == "model" for word in option.words][:1]
    )
    if not model:
        raise CannotImportError("the command line names no model", hint="vllm serve MODEL ...")
    draft.put("model.source", with_variables(model[0]), model[0])
    for word in line.positional[1:]:
        draft.leave(word, "a second model or a stray word")
    for name, value in line.environment.items():
        draft.leave(
            f"{name}={value}", "a variable of the environment; set it where the appliance runs, if it means anything"
        )
    for option in line.options:
        _place(draft, option)
    _settle_address(draft)
    return draft.finished(deployment_name(model[0]))


def _place(draft: Draft, option: Option) -> None:
    name, _, member = option.name.partition(".")
    name = RENAMED.get(name, name)
    special = _SPECIAL.get(name)
    if special is not None:
        special(draft, option, member)
        return
    positive = name.removeprefix("no_")
    found = fields().get(name) or fields().get(positive)
    if found is None or member:
        draft.leave(option.origin, "the spec has no such field")
        return
    words = ("false",) if name != positive and name not in fields() else option.words
    draft.put(found.path, field_value(positive if name not in fields() else name, found, words), option.origin)


def _settle_address(draft: Draft) -> None:
    """vLLM listens everywhere and open; that has to be said here."""
    endpoints = draft.document.get("endpoints", {})
    host = endpoints.get("http", {}).get("host")
    if host is None:
        draft.notes.append("vLLM listens on all addresses by default; this spec on 127.0.0.1 (endpoints.http.host)")
    elif host in _PUBLIC and not endpoints.get("auth", {}).get("keys"):
        draft.put("endpoints.auth.allow_public_without_keys", True, f"--host {host}")
        draft.notes.append(
            "the address is public and there are no keys, so endpoints.auth.allow_public_without_keys is set"
        )


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
    keys = [
        {"name": f"imported-{number}", "hash": "sha256:" + hashlib.sha256(word.encode()).hexdigest()}
        for number, word in enumerate(option.words, 1)
        if not word.startswith("$")
    ]
    for word in option.words:
        if word.startswith("$"):
            draft.leave(f"{option.flag} {word}", "a variable; `appliance keys new` makes the digest of a key")
    if keys:
        draft.add("endpoints.auth.keys", keys, f"{option.flag} ...")
        draft.notes.append("API keys are kept as digests")


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


def _mapping(path: str) -> "Callable[[Draft, Option, str], None]":
    """An argument that is a free JSON object."""

    def place(draft: Draft, option: Option, member: str) -> None:
        given = _as_object(option, member)
        if given is None:
            draft.leave(option.origin, "not a JSON object")
        else:
            draft.put(path, given, option.origin)

    return place


_SPECIAL: Final[dict[str, Callable[[Draft, Option, str], None]]] = {
    "model": _ignore,
    "enable_lora": _ignore,
    "enable_reasoning": _always("reasoning is split wherever decoding.reasoning_parser names a parser"),
    "disable_log_requests": _always("requests are not logged unless observability.logs.enable_log_requests says so"),
    "use_v2_block_manager": _always("there is one block manager"),
    "api_key": _keys,
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
    "hf_overrides": _mapping("model.hf_overrides"),
    "rope_scaling": _mapping("model.rope_scaling"),
    "override_generation_config": _mapping("decoding.override_generation_config"),
    "limit_mm_per_prompt": _mapping("multimodal.limit_mm_per_prompt"),
    "mm_processor_kwargs": _mapping("multimodal.mm_processor_kwargs"),
    "media_io_kwargs": _mapping("multimodal.media_io_kwargs"),
    "model_loader_extra_config": _mapping("loading.model_loader_extra_config"),
    "additional_config": _mapping("hardware.additional_config"),
}
