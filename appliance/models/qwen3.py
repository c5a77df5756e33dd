"""Qwen 3: Llama with a norm on each query and key head before the rotation."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    return dense_decoder(model, Dense(query_key_norm=model.query_key_norm()))
