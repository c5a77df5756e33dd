"""Qwen 3: Llama with a norm on each query and key head before the rotation."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.family import Model
from appliance.models.llama import llama_decoder


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    return llama_decoder(Model.of(facts, max_model_len), head_norms=True)
