"""Qwen 2 and 2.5: Llama with biases on query, key and value, and a window in the upper layers where stated."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.family import Model
from appliance.models.llama import llama_decoder


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    return llama_decoder(Model.of(facts, max_model_len))
