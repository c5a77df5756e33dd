"""Persimmon: layer norms, also of query and key heads, a fused projection stored by head, and a squared ReLU."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, QueryKeyNorm
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model

_MODULES = {
    "norm": "final_layernorm", "qkv": "self_attn.query_key_value", "o": "self_attn.dense",
    "q_norm": "self_attn.q_layernorm", "k_norm": "self_attn.k_layernorm",
    "up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h",
}  # fmt: skip


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    norm = NormSpec("layer", model.config.norm_eps, bias=True)
    has_norms = model.flag("qk_layernorm", default=True)
    dense = Dense(
        modules=_MODULES,
        norm=norm,
        query_key_norm=QueryKeyNorm(norm) if has_norms else None,
        qkv="by_head",
        gated=False,
    )
    return dense_decoder(model, dense)
