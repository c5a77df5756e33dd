"""Granite 4: Mamba 2 and attention with Granite's multipliers, and experts beside a shared block, or that alone."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, FeedForwardSpec, RoutingSpec
from appliance.models.dense import Recurrent, dense_decoder
from appliance.models.experts import Mixture
from appliance.models.family import Model
from appliance.models.granite import granite_differences
from appliance.models.granitemoe import granite_experts
from appliance.models.state_space import mamba2, mamba2_spec

_SHARED = ("input_linear", "input_linear", "output_linear")
_SHARED_APART = ("gate_linear", "up_linear", "output_linear")  # as GGUF files have them
_MODULES = {
    "gate_up": "shared_mlp.input_linear",
    "gate": "shared_mlp.gate_linear",
    "up": "shared_mlp.up_linear",
    "down": "shared_mlp.output_linear",
}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Some sizes of Granite 4 have attention in every layer."""
    model = Model.of(facts, max_model_len)
    is_apart = facts.format == "gguf"
    shared = FeedForwardSpec(model.count("shared_intermediate_size", 1024), model.activation_kind)
    dense = replace(granite_differences(model), modules=_MODULES, gate_up=not is_apart)
    mixture = None
    if model.config.num_experts:
        experts = replace(
            granite_experts(facts), shared="shared_mlp", shared_parts=_SHARED_APART if is_apart else _SHARED
        )
        mixture = Mixture.of(model, model.experts(RoutingSpec("softmax_of_chosen"), shared), experts)
    recurrent = None
    if not all(layer.attends for layer in model.config.layers):
        spec = mamba2_spec(model, NormSpec("rms", model.config.norm_eps))
        recurrent = Recurrent(spec, mamba2(model, "mamba", spec))
    return dense_decoder(model, dense, mixture, recurrent, shared)
