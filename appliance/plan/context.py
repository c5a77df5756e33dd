"""How long a sequence may be, before memory has its say; and the config values that the spec replaces."""

from typing import Any

import msgspec

from appliance.checkpoint.config import text_config
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.rope import older_rotary
from appliance.models.windows import DISABLE_WINDOWS, KEEP_ALL
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.spec import DeploymentSpec


class ContextRequest(msgspec.Struct, frozen=True):
    """`limit` tokens at most; when `may_shrink`, memory may make it less."""

    limit: int
    may_shrink: bool


def model_path(spec: DeploymentSpec) -> str:
    """Returns the field that says what the checkpoint is: its source, unless the spec replaces some of its config."""
    if spec.model.hf_overrides:
        return "model.hf_overrides"
    return "model.source" if spec.model.hf_config_path is None else "model.hf_config_path"


def config_overrides(spec: DeploymentSpec, model: ModelFacts) -> dict[str, Any]:
    """Returns what the spec adds to the checkpoint's config: that windows are disabled, or that caches keep what they
    have left, where there are some, and rotary parameters in the form of older configs."""
    asked = {DISABLE_WINDOWS: spec.model.disable_sliding_window, KEEP_ALL: spec.cache.disable_hybrid_kv_cache_manager}
    windows = {key: True for key, is_asked in asked.items() if is_asked and _windows(model)}
    return windows | _rotary_overrides(spec, model)


def _windows(model: ModelFacts) -> list[int]:
    return [group.window for group in model.geometry.groups if group.window is not None]


def _rotary_overrides(spec: DeploymentSpec, model: ModelFacts) -> dict[str, Any]:
    if not spec.model.rope_scaling and spec.model.rope_theta is None:
        return {}
    return older_rotary(text_config(model.config), spec.model.rope_scaling or None, spec.model.rope_theta)


def request_context(inputs: PlanInputs, ledger: Ledger) -> ContextRequest:
    """The model's limit or the spec's, whichever is less; refuses what the model cannot do."""
    spec, limit = inputs.spec.model, inputs.model.geometry.max_position
    sentence = inputs.model.sentence
    if spec.disable_sliding_window:
        limit = _within_windows(inputs.model, limit, ledger)
    own = limit if sentence is None or sentence.max_length is None else min(limit, sentence.max_length)
    wanted = own if spec.max_model_len == AUTO else int(spec.max_model_len)
    if wanted > limit and spec.disable_sliding_window and _windows(inputs.model):
        message = f"max_model_len is {wanted:,}, and without windows the model sees {limit:,} tokens"
        hint = f"write max_model_len: {limit}, or remove model.disable_sliding_window"
        ledger.refuse("model.max_model_len", "plan/context", message, allowed=f"auto, or at most {limit}", hint=hint)
    elif wanted > limit and not spec.allow_long_max_model_len:
        ledger.refuse(
            "model.max_model_len",
            "plan/context",
            f"max_model_len is {wanted:,}, and the model was made for {limit:,} tokens",
            allowed=f"auto, or at most {limit}",
            hint=f"write max_model_len: {limit}, or allow_long_max_model_len: true to risk nonsense beyond it",
        )
    return ContextRequest(wanted, spec.max_model_len == AUTO)


def _within_windows(model: ModelFacts, limit: int, ledger: Ledger) -> int:
    """Returns the longest context in which no token has left a window."""
    path, windows = "model.disable_sliding_window", _windows(model)
    if not windows:
        ledger.decide(path, True, "model", "it changes nothing: no layer has a window")
        return limit
    ledger.take(path, path, True, f"every layer sees all of the smallest window of {min(windows):,} tokens")
    return min(limit, *windows)
