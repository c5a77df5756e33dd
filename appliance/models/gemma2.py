"""Gemma 2: soft caps on scores and logits; every second layer has full attention, the others a sliding window."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.gemma import gemma_decoder


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    return gemma_decoder(facts, max_model_len, head_norms=False)
