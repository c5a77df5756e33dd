"""Nemotron-H and Nemotron 3: every layer is one block, of Mamba 2, attention without positions, experts or an MLP."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, ExpertsSpec, FeedForwardSpec, RoutingSpec
from appliance.models.dense import Dense, Recurrent, dense_decoder
from appliance.models.experts import ExpertModules, Mixture
from appliance.models.family import Model
from appliance.models.state_space import mamba2, mamba2_spec

_MODULES = {
    "embed": "embeddings",
    "norm": "norm_f",
    "attention_norm": "norm",
    "feed_forward_norm": "norm",
    **{name: f"mixer.{name}_proj" for name in ("q", "k", "v", "o", "up", "down")},
}
_EXPERTS = ExpertModules(
    experts="mixer.experts",
    router="mixer.gate",
    correction="mixer.gate.e_score_correction_bias",
    shared="mixer.shared_experts",
)


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """The config's `time_step_min` is a range of initial weights, and no limit, though transformers takes it as one."""
    model = Model.of(facts, max_model_len, {"mlp_bias": "its latent projections would have biases"})
    width = model.count("mamba_n_heads", 128) * model.count("mamba_d_head", 64)
    spec = mamba2_spec(model, NormSpec("rms", model.config.norm_eps), width)
    is_sparse = tuple(layer.kind == "moe" for layer in model.config.layers)
    mixture = Mixture.of(model, _experts(model), _EXPERTS, is_sparse) if any(is_sparse) else None
    root = "backbone." if any(tensor.name.startswith("backbone.") for tensor in facts.tensors) else "model."
    dense = Dense(modules=_MODULES, root=root, gated=False, single_blocks=True, ignored=("mtp.*",))
    return dense_decoder(model, dense, mixture, Recurrent(spec, mamba2(model, "mixer", spec)))


def _experts(model: Model) -> ExpertsSpec:
    kind = model.activation_kind
    routing = RoutingSpec(
        "sigmoid",
        correction=True,
        renormalize=model.flag("norm_topk_prob", default=True),
        scale=model.number("routed_scaling_factor", 1.0),
        num_groups=model.count("n_group", 1),
        num_chosen_groups=model.count("topk_group", 1),
    )
    shared = model.count("moe_shared_expert_intermediate_size", 7688)
    return ExpertsSpec(
        num_experts=model.config.num_experts,
        num_chosen=model.config.num_experts_per_token,
        width=model.config.moe_intermediate_size,
        activation=kind,
        routing=routing,
        gated=False,
        shared=FeedForwardSpec(shared, kind, gated=False),
        latent_size=model.count("moe_latent_size", 0) or None,
    )
