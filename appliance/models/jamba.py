"""Jamba: Mamba 1 with normed selections, attention without positions in some layers, and experts in every other."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, RoutingSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.experts import ExpertModules, Mixture
from appliance.models.family import Model
from appliance.models.state_space import mamba

JAMBA_MODULES = {
    "norm": "final_layernorm",
    "feed_forward_norm": "pre_ff_layernorm",
    "gate": "feed_forward.gate_proj",
    "up": "feed_forward.up_proj",
    "down": "feed_forward.down_proj",
}
_EXPERTS = ExpertModules(experts="feed_forward.experts", router="feed_forward.router")


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """A layer has the dense feed-forward unless its number, from 0, has the config's rest in the config's period."""
    model = Model.of(facts, max_model_len)
    period, first = model.count("expert_layer_period", 2), model.count("expert_layer_offset", 1)
    count, has_experts = model.config.num_layers, model.config.num_experts > 1
    is_sparse = tuple(has_experts and index % max(period, 1) == first for index in range(count))
    mixture = Mixture.of(model, model.experts(RoutingSpec("softmax")), _EXPERTS, is_sparse) if any(is_sparse) else None
    recurrent = mamba(model, "mamba", NormSpec("rms", model.config.norm_eps))
    return dense_decoder(model, Dense(modules=JAMBA_MODULES), mixture, recurrent)
