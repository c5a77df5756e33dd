"""Granite 3 MoE: Granite's multipliers, and experts weighed by the softmax of the chosen ones' logits."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, RoutingSpec
from appliance.models.dense import dense_decoder
from appliance.models.experts import ExpertModules, Mixture
from appliance.models.family import Model
from appliance.models.granite import granite_differences

_EXPERTS = ExpertModules(
    experts="block_sparse_moe",
    router="block_sparse_moe.router.layer",
    gate="input_linear",
    up="input_linear",
    down="output_linear",
)


def granite_experts(facts: ModelFacts) -> ExpertModules:
    """Returns where the experts' tensors are: GGUF files have gates and ups apart."""
    apart = replace(_EXPERTS, gate="gate_linear", up="up_linear")
    return apart if facts.format == "gguf" else _EXPERTS


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    mixture = Mixture.of(model, model.experts(RoutingSpec("softmax_of_chosen")), granite_experts(facts))
    return dense_decoder(model, granite_differences(model), mixture)
