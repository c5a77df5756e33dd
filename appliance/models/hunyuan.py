"""Hunyuan, dense and with experts: Llama with a norm on each query and key head after the rotation."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, FeedForwardSpec, RoutingSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.experts import ExpertModules, Mixture
from appliance.models.family import Model

_MODULES = {"q_norm": "self_attn.query_layernorm", "k_norm": "self_attn.key_layernorm"}
_EXPERTS = ExpertModules(router="mlp.gate.wg", shared="mlp.shared_mlp")


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    dense = Dense(modules=_MODULES, query_key_norm=model.query_key_norm(after_rotation=True))
    if facts.architecture != "HunYuanMoEV1ForCausalLM":
        return dense_decoder(model, dense)
    shared = FeedForwardSpec(model.config.intermediate_size, model.activation_kind)
    spec = model.experts(RoutingSpec(renormalize=True), shared)
    return dense_decoder(model, dense, Mixture.of(model, spec, _EXPERTS))
