"""Qwen 3 MoE: Qwen 3 with experts in place of feed-forwards, chosen by softmax."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, ExpertsSpec
from appliance.models.experts import Mixture
from appliance.models.family import Model
from appliance.models.llama import llama_decoder
from appliance.models.qwen2_moe import qwen_routing, qwen_sparse_layers


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    spec = ExpertsSpec(
        num_experts=model.config.num_experts,
        num_chosen=model.config.num_experts_per_token,
        width=model.config.moe_intermediate_size,
        activation=model.feed_forward().activation,
        routing=qwen_routing(model),
    )
    return llama_decoder(model, head_norms=True, mixture=Mixture.of(model, spec, is_sparse=qwen_sparse_layers(model)))
