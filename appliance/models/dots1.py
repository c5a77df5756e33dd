"""dots.llm1: Qwen 3's attention with the experts of DeepSeek V3."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.deepseek_routing import deepseek_mixture
from appliance.models.family import Model
from appliance.models.llama import llama_decoder


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    return llama_decoder(model, head_norms=True, mixture=deepseek_mixture(model, renormalize=False, first_dense=0))
