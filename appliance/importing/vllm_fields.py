"""Which vLLM argument is which field of the spec: read from the fields' own declarations, and the exceptions."""

import functools
from typing import Any, Final

import yaml

from appliance.base.units import DURATION_FORM, SIZE_FORM, size_text
from appliance.importing.draft import with_variables
from appliance.importing.vllm_without import WITHOUT
from appliance.importing.words import Arity
from appliance.spec.tree import Field, walk

# Sections whose fields are arguments of `vllm serve` (others belong to its batch runner and benchmarks).
_SECTIONS: Final = frozenset({
    "model", "loading", "hardware", "parallelism", "cache", "scheduler", "compilation", "lora", "decoding",
    "multimodal", "endpoints", "observability", "restart",
})  # fmt: skip
_OUR_SECTIONS: Final = ("endpoints.limits", "endpoints.store", "endpoints.auth")
# Fields of those sections that no argument of vLLM's is named after.
_OURS: Final = frozenset({
    "mirrors", "sha256", "offline", "timeout", "keep_packed", "packed_dir", "packed_size", "profile", "lock",
    "num_threads", "kernel_set", "disabled_kernels", "quantize_activations", "screen_logits", "max_waiting", "apis",
    "allowed_hosts", "keep_alive", "enable_page", "keys_file", "isolate_caches", "allow_public_without_keys",
    "trust_plugins", "cache_dir", "prefault", "runtime_paths", "resolver", "resolver_dir", "allow_request_scale",
})  # fmt: skip
_OLD_SWITCHES: Final = frozenset({
    "enable_lora", "enable_prompt_adapter", "disable_log_requests", "enable_reasoning", "use_v2_block_manager",
    "enable_log_deltas", "engine_use_ray", "worker_use_ray",
})  # fmt: skip
# Lists of ours that vLLM takes as one word of JSON, or as one word each time the flag stands.
_ONE_WORD: Final = frozenset({"allowed_origins", "allowed_methods", "allowed_headers", "middleware"})
_MANY_WORDS: Final = frozenset({"api_key", "lora_modules", "prompt_adapters", "allowed_media_domains"})
_OBJECTS: Final = frozenset({
    "speculative_config", "compilation_config", "structured_outputs_config", "kv_transfer_config", "kv_events_config",
    "attention_config", "profiler_config",
})  # fmt: skip
_SWITCH_WORDS: Final = ("enable_", "disable_", "no_", "use_", "skip_")  # how vLLM names arguments without a value
_IN_GIBIBYTES: Final = ("swap_space", "cpu_offload_gb", "mm_processor_cache_gb")

RENAMED: Final = {
    "structured_outputs_backend": "guided_decoding_backend",
    "prefix_caching_hash_algorithm": "prefix_caching_hash_algo",
    "pooler_config": "override_pooler_config",
}
SHORT: Final = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpl": "--data-parallel-size-local",
    "-dpr": "--data-parallel-start-rank",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
    "-ep": "--enable-expert-parallel",
    "-q": "--quantization",
    "-O": "--compilation-config",
    "-cc": "--compilation-config",
    "-sc": "--speculative-config",
}


@functools.cache
def fields() -> dict[str, Field]:
    """vLLM's name -> field."""
    table: dict[str, Field] = {}
    for found in walk():
        if found.child is None and "[]" not in found.path and _is_argument(found):
            table.setdefault(found.doc.vllm or found.name, found)
    return table


def _is_argument(found: Field) -> bool:
    if found.path.partition(".")[0] not in _SECTIONS:
        return False
    return bool(found.doc.vllm) or not (found.name in _OURS or found.path.startswith(_OUR_SECTIONS))


@functools.cache
def members(section: str) -> dict[str, Field]:
    """The fields of one section by vLLM's and by our names: for arguments that are JSON objects."""
    below = [found for found in walk() if found.path.startswith(section + ".") and found.child is None]
    return {name: found for found in below for name in (found.name, found.doc.vllm) if name}


@functools.cache
def switches() -> frozenset[str]:
    """Arguments without a value, in both forms of each."""
    plain = {name for name, found in fields().items() if _is_switch(found)}
    return frozenset(plain | {f"no_{name}" for name in plain} | _OLD_SWITCHES)


def arity(name: str) -> Arity:
    """How many words vLLM's argument takes; all that follow for one that we do not know."""
    name = RENAMED.get(name.partition(".")[0], name.partition(".")[0])
    found = fields().get(name)
    if name in WITHOUT:
        return WITHOUT[name].arity
    if name in switches() or (found is None and name.startswith(_SWITCH_WORDS)):
        return Arity.NONE
    if name in _ONE_WORD or name in _OBJECTS or name in ("model", "config"):
        return Arity.ONE
    if found is None or found.is_list or name in _MANY_WORDS:
        return Arity.MANY
    return Arity.ONE


def field_value(name: str, found: Field, words: tuple[str, ...]) -> Any:
    """What the words of an argument are in the spec. Nothing is checked here: the spec's own rules do that."""
    if _is_switch(found):
        value = scalar(words[0]) if words else True
        return not value if isinstance(value, bool) and _is_inverted(name, found) else value
    if found.is_list:
        values = [scalar(word) for word in words]
        return values[0] if len(values) == 1 and isinstance(values[0], list) else values
    if len(words) != 1:
        return " ".join(words)
    return _with_unit(name, found, scalar(words[0]))


def python_value(name: str, found: Field, value: Any) -> Any:
    """What a Python value of an argument is in the spec, unchecked like `field_value`."""
    if _is_switch(found):
        return not value if isinstance(value, bool) and _is_inverted(name, found) else value
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if value is not None and not isinstance(value, str | bool | int | float):
        value = str(value).removeprefix("torch.")  # a path, or a type of torch
    if found.is_list:
        return [value]
    return _with_unit(name, found, value)


def _is_switch(found: Field) -> bool:
    return found.allowed.startswith("true or false")


def _is_inverted(name: str, found: Field) -> bool:
    """`disable_x` where the spec says `enable_x`."""
    return name.startswith("disable_") and not found.name.startswith("disable_")


def _with_unit(name: str, found: Field, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if SIZE_FORM in found.allowed:
        return size_text(int(value * (1 << 30 if name in _IN_GIBIBYTES else 1)))
    return f"{value}s" if DURATION_FORM in found.allowed else value


def scalar(word: str) -> Any:
    """A number, a truth value, JSON, or text with its shell variables as references."""
    try:
        value = yaml.safe_load(word)
    except yaml.YAMLError:
        value = word
    return value if isinstance(value, bool | int | float | list | dict) else with_variables(word)
