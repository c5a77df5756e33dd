"""Gemma 4 (text): wider heads in full layers, keys and values of other layers, inputs of each layer, and experts."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from appliance.checkpoint.config import ConfigFields
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.rope import mapping_of
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import AttentionSpec, DecoderSpec, ExpertsSpec, FeedForward, ResidualSpec, RoutingSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.experts import ExpertModules, Mixture
from appliance.models.family import Model, Part
from appliance.models.gemma_layers import (
    LAYER_INPUT,
    LAYER_INPUTS,
    NORMS,
    OTHER_MEDIA,
    kv_layers,
    per_layer_inputs,
    text_root,
    with_kv_layer,
    without_unread,
)
from appliance.models.rotary import rope_spec

_STACKS = ExpertModules(
    experts="experts", router="router.proj", gate="gate_up_proj", up="gate_up_proj", shared="mlp", suffix=""
)
_SCALE = Part("residual_scale", "layer_scalar", suffix="")


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Media are no part of this version: the weights that read them are left out."""
    model = Model.of(facts, max_model_len)
    model.require("use_bidirectional_attention", "vision")  # text is causal beside images too
    inputs, sources = per_layer_inputs(model), kv_layers(model, default=0)
    mixture = _mixture(model) if model.flag("enable_moe_block", default=False) else None
    dense = Dense(
        modules=NORMS,
        root=text_root(model),
        residual=ResidualSpec("sandwich", scaled=True),
        query_key_norm=model.query_key_norm(),
        embedding_scale=model.config.hidden_size**0.5,
        mixer=lambda index, attention: _attention(model, index, attention, sources[index], max_model_len),
        feed_forward=lambda index, block: block if sources[index] is None else _widened(model, block),
        parts=(_SCALE, *(LAYER_INPUT if inputs else ()), *(_expert_parts(model) if mixture else ())),
        tables=LAYER_INPUTS if inputs else (),
        ignored=OTHER_MEDIA,
    )
    return without_unread(replace(dense_decoder(model, dense, mixture), per_layer=inputs))


def _attention(
    model: Model, index: int, attention: AttentionSpec, kv_layer: int | None, max_model_len: int
) -> AttentionSpec:
    attention, layer = with_kv_layer(model, attention, kv_layer), model.config.layers[index]
    own = ConfigFields(_own_sizes(model, index))
    head_dim = own.count("head_dim", attention.head_dim)
    attention = replace(
        attention, head_dim=head_dim, num_kv_heads=own.count("num_key_value_heads", attention.num_kv_heads)
    )
    if layer.rope is not None:
        attention = replace(
            attention, rope=rope_spec(layer.rope, replace(model.config, head_dim=head_dim), max_model_len)
        )
    shares = layer.window is None and model.flag("attention_k_eq_v", default=False)
    return replace(attention, values_are_keys=shares and kv_layer is None)


def _own_sizes(model: Model, index: int) -> Mapping[str, Any]:
    """Returns the sizes that a layer has in place of the config's: configs list them by layer, or state those of full
    layers, of which the number of KV heads counts where values are keys."""
    if (listed := model.fields.get("per_layer_config")) is not None:
        own = mapping_of("per_layer_config", listed).get(str(index), {})
        return mapping_of(f"per_layer_config.{index}", own)
    if model.config.layers[index].window is not None:
        return {}
    heads = model.fields.get("num_global_key_value_heads") if model.flag("attention_k_eq_v", default=False) else None
    return {"head_dim": model.count("global_head_dim", 512), "num_key_value_heads": heads}


def _widened(model: Model, block: FeedForward) -> FeedForward:
    """Returns the feed-forward of a layer that reads another's keys and values."""
    if not model.flag("use_double_wide_mlp", default=False):
        return block
    wide = replace(model.feed_forward(), intermediate_size=2 * model.config.intermediate_size)
    return replace(block, shared=wide) if isinstance(block, ExpertsSpec) else wide


def _mixture(model: Model) -> Mixture:
    """The dense block is one that all tokens go through, beside the experts."""
    norm = NormSpec("rms", model.config.norm_eps)
    routing = RoutingSpec("softmax", renormalize=True, expert_scale=True, norm=norm)
    return Mixture.of(model, replace(model.experts(routing, model.feed_forward()), norm=norm), _STACKS)


def _expert_parts(model: Model) -> tuple[Part, ...]:
    return (
        Part("router.norm", "router.scale", suffix="", scale=model.config.hidden_size**-0.5),
        Part("router.expert_scale", "router.per_expert_scale", suffix=""),
        Part("experts_norm", "pre_feedforward_layernorm_2"),
        Part("post_experts_norm", "post_feedforward_layernorm_2"),
        Part("post_shared_norm", "post_feedforward_layernorm_1"),
    )
