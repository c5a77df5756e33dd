"""Phi-3.5-MoE: Mixtral with layer norms, biases, experts chosen one after the other, and longrope scaling."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, RoutingSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.errors import ModelError, Problem
from appliance.models.experts import MIXTRAL_MODULES, Mixture
from appliance.models.family import Model

_NUM_CHOSEN = 2  # in transformers' code, whatever the config says


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    if model.config.num_experts_per_token != _NUM_CHOSEN:
        found = model.config.num_experts_per_token
        message = f"num_experts_per_tok is {found} in the checkpoint's config, and this family's code chooses two"
        raise ModelError(Problem(message, allowed=str(_NUM_CHOSEN)))
    routing = RoutingSpec("sparsemixer", jitter=model.number("router_jitter_noise", 0.01))
    dense = Dense(
        norm=NormSpec("layer", model.config.norm_eps, bias=True),
        head_bias=model.flag("lm_head_bias", default=False),
    )
    return dense_decoder(model, dense, Mixture.of(model, model.experts(routing), MIXTRAL_MODULES))
