"""Digests of a plan: what needs a restart when it changes, and what does not."""

from typing import Any

import msgspec

from appliance.base.hashing import sha256_json
from appliance.plan.types import EnginePlan

# Fields of `model` that only the front ends read; the engine works on token ids.
LIVE_MODEL_FIELDS = (
    "served_names",
    "chat_template",
    "chat_template_content_format",
    "default_sampling",
    "max_logprobs",
    "tokenizer_path",
)
# Fields of `scheduler` that a running engine takes over between two steps; nothing is sized by them.
LIVE_SCHEDULER_FIELDS = (
    "max_num_partial_prefills",
    "max_long_partial_prefills",
    "long_prefill_token_threshold",
    "max_waiting",
)
# Fields of `speculation` that a running engine takes over between two steps.
LIVE_SPECULATION_FIELDS = ("enabled", "num_tokens", "adaptive", "disable_by_batch_size")
# Fields of `adapters` that a running engine changes to: which adapters there are, in the slots that there are.
ADAPTER_FIELDS = ("served", "max_cpu_loras")
ENGINE_SECTIONS = (
    *("version", "appliance_version", "device", "loading", "precision"),
    *("kernels", "graphs", "cache", "scheduler", "parallel"),
)
LIVE_SECTIONS = ("name", "restart", "serving", "slo", "batch", "bench", "degraded")


def with_hashes(plan: EnginePlan) -> EnginePlan:
    """The plan with its digests: of the engine, of the adapters, and of what is live. Decisions and formulas, being
    words, enter none."""
    data: dict[str, Any] = msgspec.to_builtins(plan)
    model: dict[str, Any] = data["model"]
    engine = {name: data[name] for name in ENGINE_SECTIONS}
    engine["model"] = {name: value for name, value in model.items() if name not in LIVE_MODEL_FIELDS}
    scheduler: dict[str, Any] = data["scheduler"]
    engine["scheduler"] = {name: value for name, value in scheduler.items() if name not in LIVE_SCHEDULER_FIELDS}
    speculation: dict[str, Any] = data["speculation"] or {}
    engine["speculation"] = {each: value for each, value in speculation.items() if each not in LIVE_SPECULATION_FIELDS}
    adapters: dict[str, Any] = data["adapters"] or {}
    engine["adapters"] = {each: value for each, value in adapters.items() if each not in ADAPTER_FIELDS}
    engine["kernels"] = {**data["kernels"], "choices": [each["implementation"] for each in data["kernels"]["choices"]]}
    serving = {name: data[name] for name in LIVE_SECTIONS}
    serving["model"] = {name: model[name] for name in LIVE_MODEL_FIELDS}
    serving["scheduler"] = {name: scheduler[name] for name in LIVE_SCHEDULER_FIELDS}
    serving["speculation"] = {name: speculation.get(name) for name in LIVE_SPECULATION_FIELDS}
    served = {name: adapters.get(name) for name in ADAPTER_FIELDS}
    return msgspec.structs.replace(
        plan,
        engine_sha256=sha256_json(engine),
        adapters_sha256=sha256_json(served),
        serving_sha256=sha256_json(serving),
    )
