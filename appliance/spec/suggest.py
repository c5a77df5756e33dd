"""Hints for keys that do not exist: similar names, names of other sections, vLLM's names, removed names."""

import difflib
import functools
from collections.abc import Iterable

from appliance.spec.fields import Section
from appliance.spec.paths import Path, format_path
from appliance.spec.tree import fields_of, walk

_KV_SCALES = "each token and head of an 8-bit cache has a scale of its own, found as it is written; remove it"

GONE = {
    "num_scheduler_steps": "multi-step scheduling is gone from the field; remove it",
    "multi_step_stream_outputs": "multi-step scheduling is gone from the field; remove it",
    "use_v2_block_manager": "there is one block manager; remove it",
    "worker_use_ray": "write parallelism.backend: ray",
    "engine_use_ray": "write parallelism.backend: ray",
    "enable_prompt_adapter": "prompt adapters are gone from the field; use lora",
    "quantization_param_path": _KV_SCALES,
    "calculate_kv_scales": _KV_SCALES,
    "q_scale_constant": _KV_SCALES,
    "k_scale_constant": _KV_SCALES,
    "v_scale_constant": _KV_SCALES,
    "tokenizer_pool_size": "tokenization has its own threads; remove it",
    "long_lora_scaling_factors": "adapters carry their own scaling; remove it",
    "enable_reasoning": "write decoding.reasoning_parser alone",
    "extra_vocab_size": "adapters add no tokens; remove it",
    "lora_extra_vocab_size": "adapters add no tokens; remove it",
    "enable_lora_bias": "adapters that have biases bring them; remove it",
    "enable_lora": "a lora section is enough",
    "acceptance_method": "proposals are accepted exactly where the model samples the same; remove it",
    "spec_decoding_acceptance_method": "proposals are accepted exactly where the model samples the same; remove it",
    "rejection_sample_method": "proposals are accepted exactly where the model samples the same; remove it",
    "posterior_threshold": "typical acceptance changes answers and is not offered; remove it",
    "posterior_alpha": "typical acceptance changes answers and is not offered; remove it",
    "typical_acceptance_sampler_posterior_threshold": "typical acceptance changes answers; remove it",
    "typical_acceptance_sampler_posterior_alpha": "typical acceptance changes answers; remove it",
    "disable_mqa_scorer": "proposals are always scored in one step; remove it",
    "disable_logprobs": "log-probabilities are those without speculation; remove it",
    "disable_logprobs_during_spec_decoding": "log-probabilities are those without speculation; remove it",
    "num_speculative_tokens_per_batch_size": "speculative.adaptive finds the number for each step; remove it",
    "qlora_adapter_name_or_path": "list the adapter under lora.adapters",
    "max_context_len_to_capture": "write compilation.max_seq_len_to_capture",
    "override_device": "write hardware.device",
    "gpu_layers": "the plan decides what is on which device; see hardware.memory",
    "n_ctx": "write model.max_model_len",
    "ctx_size": "write model.max_model_len",
    "threads": "write hardware.num_threads",
    "key": 'keys are stored as digests: hash: sha256:<hex>, made by printf %s "$KEY" | sha256sum',
}


def unknown_key_hint(name: str, section: type[Section], path: Path) -> str:
    """Returns a hint for a key `name` that `section`, at `path`, does not have. It may be empty."""
    wanted = name.replace("-", "_").lower()
    here = [found.name for found in fields_of(section)]
    prefix = format_path(path)
    if wanted.startswith("x_"):
        return f"did you mean 'x-{name[2:]}'?"
    if wanted in here:
        return f"did you mean {wanted!r}?"
    if elsewhere := places_of(wanted):
        return f"did you mean {_or(elsewhere)}?"
    if wanted in GONE:
        return GONE[wanted]
    if near := difflib.get_close_matches(wanted, here, n=1, cutoff=0.7):
        return f"did you mean {near[0]!r}?"
    if near := difflib.get_close_matches(wanted, list(_by_name()), n=1, cutoff=0.85):
        return f"did you mean {_or(places_of(near[0]))}?"
    return f"keys of {prefix or 'the document'}: {', '.join(here)}; keys that begin with x- are yours"


_ALIASES = {
    "fp16": "float16",
    "f16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "f32": "float32",
    "embedding": "embed",
    "transcription": "transcribe",
    "chat": "generate",
    "gpu": "cuda",
    "nvidia": "cuda",
    "amd": "rocm",
    "warn": "warning",
    "fifo": "fcfs",
    "vllm": "none",
}


def near_value(value: object, allowed: Iterable[object]) -> str:
    """Returns the most similar allowed value, or an empty string."""
    words = [str(each) for each in allowed]
    text = str(value)
    by_lower = {word.lower(): word for word in words}
    if text.lower() in by_lower:
        return by_lower[text.lower()]
    if (alias := _ALIASES.get(text.lower())) in words:
        return str(alias)
    near = difflib.get_close_matches(text, words, n=1, cutoff=0.6)
    return near[0] if near else ""


@functools.cache
def _by_name() -> dict[str, tuple[str, ...]]:
    """Returns the paths of fields by their own name and by vLLM's."""
    table: dict[str, tuple[str, ...]] = {}
    for found in walk():
        for name in {found.name, found.doc.vllm} - {""}:
            table[name] = (*table.get(name, ()), found.path)
    return table


def places_of(name: str) -> tuple[str, ...]:
    """Returns the paths of the fields with this name, ours or vLLM's."""
    return _by_name().get(name, ())


def _or(paths: tuple[str, ...]) -> str:
    return " or ".join(paths[:3])
