"""AFMoE (Trinity): gated attention with head norms, rotation in windows alone, and experts chosen by sigmoids."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, ResidualSpec, RoutingSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.experts import ExpertModules, Mixture
from appliance.models.family import Model, Part

_MODULES = ExpertModules(router="mlp.router.gate", correction="mlp.expert_bias")
_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_mlp_layernorm",
    "post_feed_forward_norm": "post_mlp_layernorm",
}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    routing = RoutingSpec("sigmoid", correction=True, renormalize=True, scale=model.number("route_scale", 1.0))
    spec = model.experts(routing, model.shared_experts(model.count("num_shared_experts", 2)))
    first = model.count("num_dense_layers", 1)
    sparse = tuple(index >= first for index in range(model.config.num_layers))
    dense = Dense(
        modules=_NORMS,
        residual=ResidualSpec("sandwich"),
        query_key_norm=model.query_key_norm(),
        mixer=lambda _, attention: replace(attention, gated=True),
        parts=(Part("attention_gate", "self_attn.gate_proj"),),
        embedding_scale=model.config.hidden_size**0.5 if model.flag("mup_enabled", default=False) else 1.0,
    )
    return dense_decoder(model, dense, Mixture.of(model, spec, _MODULES, sparse))
