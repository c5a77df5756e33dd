"""MPT: ALiBi in place of positions, and layer norms without a bias."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.rope import mapping_of, positive_of
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec
from appliance.models.bloom import ALIBI
from appliance.models.dense import Dense, dense_decoder
from appliance.models.errors import ModelError, Problem
from appliance.models.family import Model

_MODULES = {
    "embed": "wte",
    "norm": "norm_f",
    "attention_norm": "norm_1",
    "feed_forward_norm": "norm_2",
    "qkv": "attn.Wqkv",
    "o": "attn.out_proj",
    "up": "ffn.up_proj",
    "down": "ffn.down_proj",
}
_REFUSED = {"logit_scale": "logits are those of the head"}
_REFUSED_OF_ATTENTION = ("clip_qkv", "qk_ln", "prefix_lm")


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Attention settings are a mapping of their own in the config. Raises ModelError for those of other models."""
    model = Model.of(facts, max_model_len, _REFUSED)
    settings = mapping_of("attn_config", model.fields.get("attn_config") or {})
    if problems := _problems(settings):
        raise ModelError(*problems)
    scale = settings.get("softmax_scale")
    factor = model.config.attention_scale if scale is None else positive_of(settings, "softmax_scale", 1.0)
    alibi = positive_of(settings, "alibi_bias_max", ALIBI)
    dense = Dense(
        modules=_MODULES,
        root="transformer.",
        layers="blocks.",
        norm=NormSpec("layer", model.config.norm_eps),
        qkv="joined",
        gated=False,
        mixer=lambda _, attention: replace(attention, alibi=alibi, scale=factor),
    )
    return dense_decoder(model, dense)


def _problems(settings: Mapping[str, Any]) -> list[Problem]:
    asked = [f"attn_config.{name}" for name in _REFUSED_OF_ATTENTION if settings.get(name)]
    if settings.get("alibi") is False:
        asked.append("attn_config.alibi = false")
    if settings.get("attn_type", "multihead_attention") != "multihead_attention":
        asked.append(f"attn_config.attn_type = {settings['attn_type']}")
    return [Problem(f"{name} in the checkpoint's config is not in this version") for name in asked]
