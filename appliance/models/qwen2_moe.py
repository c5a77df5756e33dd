"""Qwen 1.5 and 2 MoE: Qwen 2 with experts in most layers, and a shared block that a gate weighs."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, FeedForwardSpec, RoutingSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.experts import ExpertModules, Mixture
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    width = model.count("shared_expert_intermediate_size", 5632)
    shared = FeedForwardSpec(width, model.activation_kind)
    spec = model.experts(qwen_routing(model), shared, shared_gate=True)
    modules = ExpertModules(shared="mlp.shared_expert")
    return dense_decoder(model, Dense(), Mixture.of(model, spec, modules, qwen_sparse_layers(model)))


def qwen_routing(model: Model) -> RoutingSpec:
    return RoutingSpec("softmax", renormalize=model.flag("norm_topk_prob", default=False))


def qwen_sparse_layers(model: Model) -> tuple[bool, ...]:
    """Every `decoder_sparse_step`-th layer has experts, counted from 1, but those that `mlp_only_layers` lists."""
    step, dense = model.count("decoder_sparse_step", 1), model.counts("mlp_only_layers")
    return tuple(index not in dense and (index + 1) % max(step, 1) == 0 for index in range(model.config.num_layers))
