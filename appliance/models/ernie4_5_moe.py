"""ERNIE 4.5 with experts: rotation of neighbouring columns, softmax routing with a correction, shared blocks."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, RoutingSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.experts import ExpertModules, Mixture
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len, {"use_bias": "experts of this family have no biases here"})
    shared = model.shared_experts(model.count("moe_num_shared_experts", 2))
    spec = model.experts(RoutingSpec("softmax", correction=True, renormalize=True), shared)
    is_row = facts.format != "gguf"  # [1, experts]; GGUF files have a vector
    modules = ExpertModules(correction="mlp.moe_statics.e_score_correction_bias", correction_is_row=is_row)
    mixture = Mixture.of(model, spec, modules, _sparse_layers(model))
    return dense_decoder(model, Dense(interleaved=True, ignored=("*mtp_*",)), mixture)


def _sparse_layers(model: Model) -> tuple[bool, ...]:
    """Every `moe_layer_interval`-th layer between two, counted from 1, has experts."""
    last = model.config.num_layers - 1
    step, first = max(model.count("moe_layer_interval", 1), 1), model.count("moe_layer_start_index", 1)
    stated = model.fields.get("moe_layer_end_index")
    end = last if stated in (-1, None) else model.count("moe_layer_end_index", last)
    return tuple(first <= index <= end and (index + 1) % step == 0 for index in range(last + 1))
