"""Gemma 3 (text): head norms instead of soft caps; for each full layer five sliding-window layers, which have their own
rotary base."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.gemma import gemma_decoder


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    return gemma_decoder(facts, max_model_len, head_norms=True)
