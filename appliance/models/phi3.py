"""Phi-3 and 3.5: Llama with fused projections in the checkpoint, partial rotation and longrope scaling."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    return dense_decoder(Model.of(facts, max_model_len), Dense(qkv="joined", gate_up=True))
