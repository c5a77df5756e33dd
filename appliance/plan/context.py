"""How long a sequence may be, before memory has its say; and the config values that the spec replaces."""

from typing import Any

import msgspec

from appliance.checkpoint.facts import ModelFacts
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.spec import DeploymentSpec


class ContextRequest(msgspec.Struct, frozen=True):
    """`limit` tokens at most; when `may_shrink`, memory may make it less."""

    limit: int
    may_shrink: bool


def config_overrides(spec: DeploymentSpec, model: ModelFacts) -> dict[str, Any]:
    """Returns the spec's replacements of the checkpoint's rotary parameters, in the form of older configs."""
    if not spec.model.rope_scaling and spec.model.rope_theta is None:
        return {}
    new = model.config.get("rope_parameters") or {}
    full = new.get("full_attention", new)
    overrides: dict[str, Any] = {"rope_parameters": None}
    theta = spec.model.rope_theta or model.config.get("rope_theta") or full.get("rope_theta")
    if theta is not None:
        overrides["rope_theta"] = theta
    local = (new.get("sliding_attention") or {}).get("rope_theta")
    if local is not None:
        overrides["rope_local_base_freq"] = local
    scaling = spec.model.rope_scaling or {key: value for key, value in full.items() if key != "rope_theta"}
    if scaling:
        overrides["rope_scaling"] = scaling
    return overrides


def request_context(inputs: PlanInputs, ledger: Ledger) -> ContextRequest:
    """The model's limit or the spec's, whichever is less; refuses what the model cannot do."""
    spec, limit = inputs.spec.model, inputs.model.geometry.max_position
    sentence = inputs.model.sentence
    own = limit if sentence is None or sentence.max_length is None else min(limit, sentence.max_length)
    wanted = own if spec.max_model_len == AUTO else int(spec.max_model_len)
    if wanted > limit and not spec.allow_long_max_model_len:
        ledger.refuse(
            "model.max_model_len",
            "plan/context",
            f"max_model_len is {wanted:,}, and the model was made for {limit:,} tokens",
            allowed=f"auto, or at most {limit}",
            hint=f"write max_model_len: {limit}, or allow_long_max_model_len: true to risk nonsense beyond it",
        )
    return ContextRequest(wanted, spec.max_model_len == AUTO)
