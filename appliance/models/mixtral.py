"""Mixtral: Llama with experts in place of each feed-forward, chosen by softmax."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, ExpertsSpec, RoutingSpec
from appliance.models.experts import MIXTRAL_MODULES, Mixture
from appliance.models.family import Model
from appliance.models.llama import llama_decoder


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    spec = ExpertsSpec(
        num_experts=model.config.num_experts,
        num_chosen=model.config.num_experts_per_token,
        width=model.config.moe_intermediate_size,
        activation=model.feed_forward().activation,
        routing=RoutingSpec("softmax", renormalize=True),
    )
    return llama_decoder(model, mixture=Mixture.of(model, spec, MIXTRAL_MODULES))
