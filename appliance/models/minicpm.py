"""MiniCPM 1 and 2: Llama with multipliers of the embedding, the blocks and the logits."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import dense_decoder
from appliance.models.family import Model
from appliance.models.minicpm3 import minicpm_differences


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len, {"num_experts": "experts of this family are not in this version"})
    return dense_decoder(model, minicpm_differences(model))
