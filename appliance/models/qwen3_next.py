"""Qwen3-Next: gated delta layers, with gated attention in every fourth, and experts beside a shared block."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, ExpertsSpec, FeedForwardSpec, RoutingSpec
from appliance.models.dense import Dense, Recurrent, dense_decoder
from appliance.models.experts import ExpertModules, Mixture
from appliance.models.family import Model
from appliance.models.gated_delta import fused_parts, gated_delta_spec
from appliance.models.qwen2_moe import qwen_sparse_layers

QWEN_EXPERTS = ExpertModules(shared="mlp.shared_expert")
_BIASED = {"attention_bias": "gates of attention have no biases here"}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len, _BIASED)
    spec = gated_delta_spec(model)
    mixture = Mixture.of(model, qwen_experts(model), QWEN_EXPERTS, qwen_sparse_layers(model))
    return dense_decoder(
        model, gated_attention(model), mixture, Recurrent(spec, fused_parts(model, spec, "linear_attn"))
    )


def gated_attention(model: Model) -> Dense:
    """Returns the differences of Qwen3-Next's attention, norms and names from Llama's. Its norms are stored less one.

    The tensors beside the decoder draft tokens or read images.
    """
    return Dense(
        stored_norms="none" if model.facts.stored.norm_includes_one else "add_one",
        query_key_norm=model.query_key_norm(),
        qkv="gated",
        mixer=lambda _, attention: replace(attention, gated=True),
        ignored=("mtp.*", "model.visual.*"),
    )


def qwen_experts(model: Model) -> ExpertsSpec:
    """Returns experts beside a block that a gate weighs."""
    routing = RoutingSpec("softmax", renormalize=model.flag("norm_topk_prob", default=True))
    width = model.count("shared_expert_intermediate_size", 512)
    return model.experts(routing, FeedForwardSpec(width, model.activation_kind), shared_gate=True)
