"""DeepSeek V2, V2-Lite, V3 and R1, Kimi K2 and GLM 4.7 Flash: latent attention, and experts beside a shared block."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, RoutingSpec
from appliance.models.deepseek_routing import deepseek_mixture, drafting_layers
from appliance.models.dense import Dense, dense_decoder
from appliance.models.errors import ModelError, Problem
from appliance.models.experts import Mixture
from appliance.models.family import Model
from appliance.models.latent import with_latent_attention

_ROUTINGS = ("greedy", "group_limited_greedy")  # of V2
_REFUSED_OF_V2 = {"norm_topk_prob": "the factors of a token's experts are not divided by their sum"}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Layers after the last one draft tokens for speculation, and are left out."""
    is_v2 = facts.architecture == "DeepseekV2ForCausalLM"
    model = Model.of(facts, max_model_len, _REFUSED_OF_V2 if is_v2 else None)
    mixture = _v2_mixture(model) if is_v2 else _mixture(model)
    dense = Dense(ignored=() if is_v2 else drafting_layers(model, 1))
    interleaved = is_v2 or model.flag("rope_interleave", default=True)
    return dense_decoder(model, with_latent_attention(model, dense, interleaved=interleaved), mixture)


def _mixture(model: Model) -> Mixture:
    first_dense = 3 if model.config.model_type == "deepseek_v3" else 1
    return deepseek_mixture(model, renormalize=True, first_dense=first_dense)


def _v2_mixture(model: Model) -> Mixture:
    """Routes by softmax; with groups, by the largest score in each."""
    method = model.fields.text("topk_method", "greedy")
    if method not in _ROUTINGS:
        raise ModelError(Problem(f"topk_method is {method!r}", allowed=", ".join(_ROUTINGS)))
    has_groups = method == "group_limited_greedy"
    routing = RoutingSpec(
        scale=model.number("routed_scaling_factor", 1.0),
        num_groups=model.count("n_group", 1) if has_groups else 1,
        num_chosen_groups=model.count("topk_group", 1) if has_groups else 1,
        group_scoring="max",
    )
    spec = model.experts(routing, model.shared_experts(model.count("n_shared_experts", 0)))
    first = model.count("first_k_dense_replace", 0)
    return Mixture.of(model, spec, is_sparse=tuple(index >= first for index in range(model.config.num_layers)))
