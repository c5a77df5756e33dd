"""ERNIE 4.5 with experts: rotation of neighbouring columns, softmax routing with a correction, shared blocks."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, ExpertsSpec, FeedForwardSpec, LayerSpec, RoutingSpec
from appliance.models.experts import ExpertModules, Mixture
from appliance.models.family import Model
from appliance.models.llama import llama_decoder


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len, {"use_bias": "experts of this family have no biases here"})
    config, activation = model.config, model.feed_forward().activation
    num_shared = model.count("moe_num_shared_experts", 2)
    spec = ExpertsSpec(
        num_experts=config.num_experts,
        num_chosen=config.num_experts_per_token,
        width=config.moe_intermediate_size,
        activation=activation,
        routing=RoutingSpec("softmax", correction=True, renormalize=True),
        shared=FeedForwardSpec(num_shared * config.moe_intermediate_size, activation) if num_shared else None,
    )
    is_row = facts.format == "safetensors"  # [1, experts]; GGUF files have a vector
    modules = ExpertModules(correction="mlp.moe_statics.e_score_correction_bias", correction_is_row=is_row)
    decoder = llama_decoder(model, mixture=Mixture.of(model, spec, modules, _sparse_layers(model)))
    return replace(
        decoder,
        layers=tuple(_interleaved(layer) for layer in decoder.layers),
        ignored_tensors=(*decoder.ignored_tensors, "*mtp_*"),
    )


def _interleaved(layer: LayerSpec) -> LayerSpec:
    rope = layer.attention.rope
    assert rope is not None, "the family rotates every layer"
    return replace(layer, attention=replace(layer.attention, rope=replace(rope, interleaved=True)))


def _sparse_layers(model: Model) -> tuple[bool, ...]:
    """Every `moe_layer_interval`-th layer between two, counted from 1, has experts."""
    last = model.config.num_layers - 1
    step, first = max(model.count("moe_layer_interval", 1), 1), model.count("moe_layer_start_index", 1)
    stated = model.facts.config.get("moe_layer_end_index", -1)
    end = last if stated in (-1, None) else model.count("moe_layer_end_index", last)
    return tuple(first <= index <= end and (index + 1) % step == 0 for index in range(last + 1))
