"""dots.llm1: Qwen 3's attention with the experts of DeepSeek V3."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.deepseek_routing import deepseek_mixture
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    mixture = deepseek_mixture(model, renormalize=False, first_dense=0)
    return dense_decoder(model, Dense(query_key_norm=model.query_key_norm()), mixture)
