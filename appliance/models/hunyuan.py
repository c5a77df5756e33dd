"""Hunyuan (dense): Llama with a norm on each query and key head after the rotation."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model

_MODULES = {"q_norm": "self_attn.query_layernorm", "k_norm": "self_attn.key_layernorm"}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    dense = Dense(modules=_MODULES, query_key_norm=model.query_key_norm(after_rotation=True))
    return dense_decoder(model, dense)
